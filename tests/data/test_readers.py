"""Datasets: what is read is what was written, in a fixed order, and only what is needed."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.datasets
import torch
import torch.nn.functional as F
from PIL import Image

from medbn import data
from medbn.data.digits import enlarge


def records(count: int, label_bytes: int, classes: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (count, 3072), dtype=np.uint8)
    labels = rng.integers(0, classes, (count, label_bytes), dtype=np.uint8)
    return np.concatenate([labels, pixels], axis=1)


@pytest.fixture
def root(tmp_path):
    """Small files in the layouts of the real ones."""
    ten, hundred = tmp_path / "cifar-10-batches-bin", tmp_path / "cifar-100-binary"
    ten.mkdir()
    hundred.mkdir()
    for part in range(1, 6):
        records(20, 1, 10, part).tofile(ten / f"data_batch_{part}.bin")
    records(30, 1, 10).tofile(ten / "test_batch.bin")
    for split in ("train", "test"):
        records(25, 2, 100).tofile(hundred / f"{split}.bin")
    (hundred / "fine_label_names.txt").write_text("\n".join(f"kind{n}" for n in range(100)) + "\n\n")
    return tmp_path


def tree(folder, classes=("cat", "ant", "bee"), count=4, size=(20, 24)):
    rng = np.random.default_rng(0)
    for kind in classes:
        (folder / kind).mkdir(parents=True)
        for number in range(count):
            picture = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
            Image.fromarray(picture).save(folder / kind / f"{number}.png")
    (folder / classes[0] / "notes.txt").write_text("not an image")
    return folder


def test_digits_are_scikit_learns_enlarged():
    original = sklearn.datasets.load_digits()
    train, test = data.load("digits", "train"), data.load("digits")
    assert (len(train), len(test)) == (1000, 797)
    labels = torch.cat([train.labels, test.labels]).numpy()
    assert np.array_equal(labels, original.target)
    images = torch.cat([train.read(range(1000)), test.read(range(797))])
    assert images.shape == (1797, 1, 16, 16)
    small = torch.from_numpy(original.images).unsqueeze(1) * (255 / 16)
    expected = F.interpolate(small, scale_factor=2, mode="bilinear", align_corners=False)
    assert (images.double() - expected).abs().max() <= 0.5 + 1e-9


def test_enlarging_keeps_flat_images_flat():
    for level in (0, 5, 16):
        assert enlarge(torch.full((1, 8, 8), level, dtype=torch.uint8)).unique().tolist() == [round(level * 255 / 16)]


def test_cifar10_reads_its_records(root):
    test = data.load("cifar10", root=root)
    raw = records(30, 1, 10)
    assert test.classes[3] == "cat"
    assert test.labels.tolist() == raw[:, 0].tolist()
    assert np.array_equal(test.read(range(30)).numpy(), raw[:, 1:].reshape(30, 3, 32, 32))
    train = data.load("cifar10", "train", root=root)
    assert len(train) == 100
    assert np.array_equal(train.read([25])[0].numpy().ravel(), records(20, 1, 10, 2)[5, 1:])


def test_cifar100_takes_the_fine_label(root):
    test = data.load("cifar100", root=root)
    raw = records(25, 2, 100)
    assert test.labels.tolist() == raw[:, 1].tolist()
    assert test.classes[7] == "kind7"
    assert np.array_equal(test.read([24])[0].numpy().ravel(), raw[24, 2:])


def test_damaged_or_missing_files_are_named(root):
    file = root / "cifar-10-batches-bin" / "test_batch.bin"
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(ValueError, match=r"test_batch\.bin is not in the CIFAR binary layout"):
        data.load("cifar10", root=root)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"test_batch\.bin is missing"):
        data.load("cifar10", root=root)
    records(3, 1, 200).tofile(file)
    with pytest.raises(ValueError, match="10 classes"):
        data.load("cifar10", root=root)
    with pytest.raises(FileNotFoundError, match=r"medbn data fetch cifar10-c, or medbn data generate cifar10-c"):
        data.load("cifar10-c", corruption="fog", root=root)


def test_batches_in_order_in_two_dtypes_from_anywhere(root):
    dataset = data.load("cifar10", root=root)
    whole = dataset.read(range(30))
    bytes_ = list(dataset.batches(8, dtype=torch.uint8))
    assert [len(images) for images, _ in bytes_] == [8, 8, 8, 6]
    assert torch.equal(torch.cat([images for images, _ in bytes_]), whole)
    assert torch.equal(torch.cat([labels for _, labels in bytes_]), dataset.labels)
    floats = list(dataset.batches(8, first=1, limit=1))
    assert len(floats) == 1
    assert torch.equal(floats[0][0], whole[8:16].float() / 255)
    assert len(list(dataset.batches(8, drop_last=True))) == 3
    assert list(dataset.batches(8, first=9)) == []
    for bad in ({"size": 0}, {"size": 8, "dtype": torch.int64}, {"size": 8, "first": -1}):
        with pytest.raises(ValueError, match=r"batch|dtype|negative"):
            dataset.batches(**bad)


def test_a_consumer_that_stops_early_leaves_no_thread(root):
    import threading

    dataset = data.load("cifar10", root=root)
    stream = dataset.batches(4)
    next(stream)
    stream.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("medbn-data")]


def test_fingerprints_follow_images_labels_and_order(root):
    dataset = data.load("cifar10", root=root)
    again = data.load("cifar10", root=root)
    assert dataset.fingerprint == again.fingerprint
    others = [
        dataset.subset([0, 1]),
        dataset.subset([1, 0]),
        dataset.shuffle(1),
        data.load("cifar10", "train", root=root),
        data.load("cifar10", corruption="fog", severity=1, root=root),
        data.load("cifar10", corruption="fog", severity=2, root=root),
        data.load("cifar10", corruption="fog", severity=2, seed=1, root=root),
        data.load("cifar10", corruption="frost", frost="synthetic", root=root),
    ]
    seen = {dataset.fingerprint, *(other.fingerprint for other in others)}
    assert len(seen) == len(others) + 1
    images, labels = dataset.read(range(30)).clone(), dataset.labels.clone()
    labels[3] = (labels[3] + 1) % 10
    changed = data.from_tensors("cifar10", "test", dataset.classes, images, labels)
    assert changed.fingerprint not in seen
    same = data.from_tensors("other name", "test", dataset.classes, images, dataset.labels)
    assert same.fingerprint == dataset.fingerprint


def test_subset_and_shuffle(root):
    dataset = data.load("cifar10", root=root)
    part = dataset.subset([7, 3, 3])
    assert torch.equal(part.read(range(3)), dataset.read([7, 3, 3]))
    assert torch.equal(part.read([2, 0]), dataset.read([3, 7]))
    assert part.labels.tolist() == dataset.labels[[7, 3, 3]].tolist()
    mixed = dataset.shuffle(0)
    assert sorted(mixed.labels.tolist()) == sorted(dataset.labels.tolist())
    assert torch.equal(mixed.read(range(30)), dataset.shuffle(0).read(range(30)))
    with pytest.raises(ValueError, match="from 0 to 29"):
        dataset.subset([30])


def test_subsets_of_subsets_and_of_corrupted_images(root):
    dataset = data.load("cifar10", root=root)
    nested = dataset.shuffle(0).subset(range(3, 9)).subset([4, 0])
    order = dataset.shuffle(0).read(range(30))
    assert torch.equal(nested.read(range(2)), order[[7, 3]])
    assert torch.equal(next(nested.batches(2, dtype=torch.uint8))[0], order[[7, 3]])
    assert torch.equal(dataset.read(range(0, 10, 3)), dataset.read(range(10))[::3])
    for wrong in (torch.ones(30, dtype=torch.bool), [1.7], [[1]]):
        with pytest.raises(ValueError, match="list of indices"):
            dataset.subset(wrong)
    assert dataset.subset([]).read([]).shape == (0, 3, 32, 32)
    assert data.corrupt(dataset, "fog", 1).read([]).shape == (0, 3, 32, 32)


def test_what_a_batch_holds_is_the_callers(root):
    dataset = data.load("cifar10", root=root)
    before = dataset.read(range(30)).clone(), dataset.labels.clone()
    images, labels = next(dataset.batches(10, dtype=torch.uint8))
    images.zero_()
    labels.fill_(7)
    assert torch.equal(dataset.read(range(30)), before[0])
    assert torch.equal(dataset.labels, before[1])


def test_a_folders_fingerprint_follows_contents_and_labels(tmp_path):
    root = tmp_path / "bmp"
    for kind in "ab":
        (root / kind).mkdir(parents=True)
        Image.fromarray(np.full((8, 8, 3), ord(kind), dtype=np.uint8)).save(root / kind / "0.bmp")
    subset = ["a/0.bmp", "b/0.bmp"]
    seen = {data.load_image_folder(root, subset=subset).fingerprint}
    Image.fromarray(np.zeros((8, 8, 3), dtype=np.uint8)).save(root / "a" / "0.bmp")  # the same size
    seen.add(data.load_image_folder(root, subset=subset).fingerprint)
    (root / "A0").mkdir()  # moves all labels by one
    seen.add(data.load_image_folder(root, subset=subset).fingerprint)
    assert len(seen) == 3


def test_folders_below_class_folders_count(tmp_path):
    tree(tmp_path / "photos" / "cat", classes=("x", "y"), count=2)
    assert len(data.load_image_folder(tmp_path / "photos")) == 4


def test_corrupted_as_read_equals_corrupted_at_once(root):
    dataset = data.load("cifar10", root=root)
    noisy = data.load("cifar10", corruption="gaussian_noise", severity=2, seed=4, root=root)
    whole = data.corruptions.corrupt(dataset.read(range(30)), "gaussian_noise", 2, seed=4)
    assert torch.equal(torch.cat([images for images, _ in noisy.batches(7, dtype=torch.uint8)]), whole)
    assert torch.equal(noisy.read([5, 2]), whole[[5, 2]])
    assert torch.equal(noisy.subset([9, 1]).read(range(2)), whole[[9, 1]])
    assert noisy.name == "cifar10/gaussian_noise/2"


def test_folders(tmp_path):
    root = tree(tmp_path / "photos")
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


def test_folders_scale_and_cut_the_middle(tmp_path):
    picture = np.zeros((64, 128, 3), dtype=np.uint8)
    picture[:, 32:96] = 200
    (tmp_path / "a").mkdir()
    Image.fromarray(picture).save(tmp_path / "a" / "0.png")
    image = data.load_image_folder(tmp_path, size=28).read([0])[0]
    assert image.shape == (3, 28, 28)
    assert image.unique().tolist() == [200]


def test_a_subset_of_a_folder_is_an_explicit_list(tmp_path):
    root = tree(tmp_path / "photos")
    chosen = ["cat/2.png", "ant/0.png"]
    (tmp_path / "list.txt").write_text("\n".join(chosen) + "\n")
    for subset in (chosen, tmp_path / "list.txt"):
        part = data.load_image_folder(root, subset=subset)
        assert part.labels.tolist() == [2, 0]
    with pytest.raises(FileNotFoundError, match=r"'cat/9\.png'"):
        data.load_image_folder(root, subset=["cat/9.png"])


def test_folders_that_are_none(tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder"):
        data.load(str(tmp_path / "nothing"))
    with pytest.raises(ValueError, match="no class folders"):
        data.load_image_folder(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(ValueError, match="no images"):
        data.load_image_folder(tmp_path)
    (tmp_path / "a" / "x.png").write_bytes(b"nonsense")
    dataset = data.load_image_folder(tmp_path, size=8)
    with pytest.raises(ValueError, match=r"x\.png is not a readable image"):
        dataset.read([0])


@pytest.mark.parametrize("group", ["", "weather"])
def test_imagenet_c_folders(tmp_path, group):
    tree(tmp_path / "ImageNet-C" / group / "fog" / "3", classes=("n01", "n02"), size=(224, 224))
    dataset = data.load("imagenet-c", corruption="fog", severity=3, root=tmp_path)
    assert dataset.name == "imagenet-c/fog/3"
    assert (len(dataset), dataset.shape) == (8, (3, 224, 224))
    with pytest.raises(FileNotFoundError, match="no snow/3"):
        data.load("imagenet-c", corruption="snow", severity=3, root=tmp_path)


def test_the_root(tmp_path, monkeypatch):
    monkeypatch.setenv("MEDBN_DATA", str(tmp_path / "a"))
    assert data.find_root() == tmp_path / "a"
    assert data.find_root(tmp_path / "b") == tmp_path / "b"
    monkeypatch.delenv("MEDBN_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    monkeypatch.setattr("sys.platform", "linux")
    assert data.find_root() == tmp_path / "c" / "medbn"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cifar11", {}, "Did you mean 'cifar1"),
        ("digits", {"split": "dev"}, "unknown split"),
        ("digits", {"corruption": "fog", "severity": 9}, "severity must be"),
        ("digits", {"corruption": "frog"}, "Did you mean 'fog'"),
    ],
)
def test_wrong_names(name, options, message):
    with pytest.raises(ValueError, match=message):
        data.load(name, **options)


def test_of_array_checks_what_it_gets():
    with pytest.raises(ValueError, match="must be uint8"):
        data.from_tensors("x", "test", ["a"], torch.zeros(2, 3, 8, 8), torch.zeros(2))
