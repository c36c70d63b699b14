"""Image folders, ImageNet-C among them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from medbn import data

from .images import write_image_folder

Image = pytest.importorskip("PIL.Image")


def test_classes_order_and_images(tmp_path):
    root = write_image_folder(tmp_path / "photos")
    dataset = data.load_image_folder(root, shuffle=None)
    assert dataset.classes == ("ant", "bee", "cat")
    assert dataset.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert dataset.shape == (3, 20, 24)
    expected = np.asarray(Image.open(root / "bee" / "1.png")).transpose(2, 0, 1)
    assert np.array_equal(dataset.read([5])[0].numpy(), expected)
    mixed = data.load(str(root))
    assert sorted(mixed.labels.tolist()) == dataset.labels.tolist()
    assert mixed.labels.tolist() != dataset.labels.tolist()
    assert mixed.fingerprint == data.load_image_folder(root).fingerprint != dataset.fingerprint
    assert data.load_image_folder(root, size=14).read([0]).shape == (1, 3, 14, 14)


def test_images_are_scaled_and_cropped_at_the_centre(tmp_path):
    picture = np.zeros((64, 128, 3), dtype=np.uint8)
    picture[:, 32:96] = 200
    (tmp_path / "a").mkdir()
    Image.fromarray(picture).save(tmp_path / "a" / "0.png")
    image = data.load_image_folder(tmp_path, size=28).read([0])[0]
    assert image.shape == (3, 28, 28)
    assert image.unique().tolist() == [200]


def test_images_in_folders_below_a_class_folder_count(tmp_path):
    write_image_folder(tmp_path / "photos" / "cat", classes=("x", "y"), count=2)
    assert len(data.load_image_folder(tmp_path / "photos")) == 4


def test_a_subset_is_a_list_of_paths(tmp_path):
    root = write_image_folder(tmp_path / "photos")
    chosen = ["cat/2.png", "ant/0.png"]
    (tmp_path / "list.txt").write_text("\n".join(chosen) + "\n")
    for subset in (chosen, tmp_path / "list.txt"):
        assert data.load_image_folder(root, subset=subset).labels.tolist() == [2, 0]
    with pytest.raises(FileNotFoundError, match=r"cat/9\.png"):
        data.load_image_folder(root, subset=["cat/9.png"])


def test_the_fingerprint_depends_on_contents_and_labels(tmp_path):
    root = tmp_path / "bmp"
    for kind in "ab":
        (root / kind).mkdir(parents=True)
        Image.fromarray(np.full((8, 8, 3), ord(kind), dtype=np.uint8)).save(root / kind / "0.bmp")
    subset = ["a/0.bmp", "b/0.bmp"]
    fingerprints = {data.load_image_folder(root, subset=subset).fingerprint}
    Image.fromarray(np.zeros((8, 8, 3), dtype=np.uint8)).save(root / "a" / "0.bmp")  # a file of the same size
    fingerprints.add(data.load_image_folder(root, subset=subset).fingerprint)
    (root / "A0").mkdir()  # a new first class increases all labels by one
    fingerprints.add(data.load_image_folder(root, subset=subset).fingerprint)
    assert len(fingerprints) == 3


def test_folders_without_images_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing"):
        data.load(str(tmp_path / "nothing"))
    with pytest.raises(ValueError, match="class folders"):
        data.load_image_folder(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(ValueError, match="no images"):
        data.load_image_folder(tmp_path)
    (tmp_path / "a" / "x.png").write_bytes(b"nonsense")
    dataset = data.load_image_folder(tmp_path, size=8)
    with pytest.raises(ValueError, match=r"x\.png"):
        dataset.read([0])


@pytest.mark.parametrize("group", ["", "weather"])
def test_imagenet_c(tmp_path, group):
    write_image_folder(tmp_path / "ImageNet-C" / group / "fog" / "3", classes=("n01", "n02"), size=(224, 224))
    dataset = data.load("imagenet-c", corruption="fog", severity=3, root=tmp_path)
    assert dataset.name == "imagenet-c/fog/3"
    assert (len(dataset), dataset.shape) == (8, (3, 224, 224))
    with pytest.raises(FileNotFoundError, match="snow/3"):
        data.load("imagenet-c", corruption="snow", severity=3, root=tmp_path)


def test_imagenet_c_from_some_images_of_imagenet(tmp_path):
    write_image_folder(tmp_path / "imagenet" / "val", classes=("0000", "0001"), size=(256, 300))
    clean = data.load("imagenet", root=tmp_path)
    assert (len(clean), clean.shape, clean.name) == (8, (3, 224, 224), "imagenet")
    with pytest.raises(FileNotFoundError, match="train"):
        data.load("imagenet", "train", root=tmp_path)
    data.generate(clean, tmp_path / "ImageNet-C", names=("contrast",), severities=(5,))
    corrupted = data.load("imagenet-c", corruption="contrast", root=tmp_path)
    expected = data.load("imagenet", corruption="contrast", root=tmp_path)
    assert torch.equal(corrupted.read(range(8)), expected.read(range(8)))
    assert torch.equal(corrupted.labels, clean.labels)
    assert corrupted.classes == ("0000", "0001")
    with pytest.raises(ValueError, match="subset"):
        data.load("imagenet-c", corruption="contrast", root=tmp_path, subset=["0000/1.png"])
