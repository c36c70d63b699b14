"""Cityscapes, SYNTHIA, CamVid and folders of one's own, in small trees of the published layouts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from medbn import data

from .trees import draw, encode_png16, photograph, save

Image = pytest.importorskip("PIL.Image")

# From the table of labels that Cityscapes publishes (labels.py of cityscapesScripts): id and trainId.
TRAIN_ID = {
    7: 0, 8: 1, 11: 2, 12: 3, 13: 4, 17: 5, 19: 6, 20: 7, 21: 8, 22: 9, 23: 10, 24: 11, 25: 12, 26: 13, 27: 14, 28: 15,
    31: 16, 32: 17, 33: 18,
}  # fmt: skip


def cityscapes_tree(folder, split="val", cities=("aachen", "bonn"), frames=3):
    rng, written = np.random.default_rng(len(split)), {}
    for city in cities:
        for frame in range(frames):
            stem = f"{city}_{frame:06d}_000019"
            image, numbers = photograph(rng), draw(rng, list(range(34)))
            save(folder / "leftImg8bit" / split / city / f"{stem}_leftImg8bit.png", image)
            save(folder / "gtFine" / split / city / f"{stem}_gtFine_labelIds.png", numbers)
            save(folder / "gtFine" / split / city / f"{stem}_gtFine_instanceIds.png", numbers)
            written[stem] = image, numbers
    return written


@pytest.fixture
def cityscapes(tmp_path):
    cityscapes_tree(tmp_path / "cityscapes", "train", frames=4)
    return tmp_path, cityscapes_tree(tmp_path / "cityscapes")


def test_cityscapes_numbers_become_training_classes(cityscapes):
    root, written = cityscapes
    dataset = data.load_segmentation("cityscapes", root=root, shuffle=None)
    assert len(dataset) == 6
    assert dataset.size == (12, 20)
    assert dataset.classes[13] == "car"
    assert dataset.colours[13] == (0, 0, 142)
    assert dataset.scored == tuple(range(19))
    for index, stem in enumerate(sorted(written)):
        image, numbers = written[stem]
        found, labels = dataset[index]
        assert np.array_equal(found.permute(1, 2, 0), image)
        expected = [[TRAIN_ID.get(int(number), 255) for number in row] for row in numbers]
        assert labels.tolist() == expected


def test_the_validation_part_of_cityscapes_is_its_test_split(cityscapes):
    root, _ = cityscapes
    splits = {split: data.load_segmentation("cityscapes", split, root=root) for split in ("train", "val", "test")}
    assert [len(dataset) for dataset in splits.values()] == [8, 6, 6]
    assert splits["test"].fingerprint == splits["val"].fingerprint != splits["train"].fingerprint
    assert splits["test"].split == "val"


def test_a_path_to_a_published_layout_is_recognised(cityscapes, tmp_path):
    root, _ = cityscapes
    named = data.load_segmentation("cityscapes", root=root)
    assert data.task_of(root / "cityscapes") == "segmentation"
    assert data.load_segmentation(root / "cityscapes").fingerprint == named.fingerprint
    with pytest.raises(ValueError, match="load_segmentation"):
        data.load(root / "cityscapes")
    with pytest.raises(FileNotFoundError, match="none"):
        data.load_segmentation(tmp_path / "none")


def test_the_fingerprint_is_that_of_files_and_size(cityscapes):
    root, written = cityscapes
    before = data.load_segmentation("cityscapes", root=root).fingerprint
    assert data.load_segmentation("cityscapes", root=root).fingerprint == before
    assert data.load_segmentation("cityscapes", root=root, size=(6, 10)).fingerprint != before
    assert data.load_segmentation("cityscapes", root=root, shuffle=1).fingerprint != before
    stem = sorted(written)[0]
    save(root / "cityscapes/gtFine/val/aachen" / f"{stem}_gtFine_labelIds.png", np.full((12, 20), 7, dtype=np.uint8))
    assert data.load_segmentation("cityscapes", root=root).fingerprint != before


def test_labels_are_resized_by_nearest_neighbour(cityscapes):
    root, _ = cityscapes
    full = data.load_segmentation("cityscapes", root=root)
    half = data.load_segmentation("cityscapes", root=root, size=(4, 10))
    doubled = data.load_segmentation("cityscapes", root=root, size=(24, 40))
    images, labels = full.read(range(6))
    _, small = half.read(range(6))
    # 12 rows become 4: the centre of a new row is row 1 of 3; 20 columns become 10: the centre lies between two.
    assert torch.equal(small, labels[:, 1::3, 1::2])
    large_images, large = doubled.read(range(6))
    assert torch.equal(large, labels.repeat_interleave(2, 1).repeat_interleave(2, 2))
    assert set(small.unique().tolist()) <= set(labels.unique().tolist())
    assert large_images.float().mean() == pytest.approx(images.float().mean(), abs=2)


FRAME = "bonn_000001_000019"
IMAGE, LABELS = f"leftImg8bit/val/bonn/{FRAME}_leftImg8bit.png", f"gtFine/val/bonn/{FRAME}_gtFine_labelIds.png"


@pytest.mark.parametrize(
    ("file", "pixels", "message"),
    [
        (LABELS, None, rf"no labels for .*{FRAME}"),
        (IMAGE, None, rf"no image for .*{FRAME}"),
        (IMAGE, np.zeros((12, 22, 3), np.uint8), rf"{FRAME}.*12 × 22.*12 × 20.*size"),
        (LABELS, np.zeros((6, 10), np.uint8), rf"{FRAME}\S*labelIds\.png has 6 × 10"),
        (LABELS, np.full((12, 20), 34, np.uint8), rf"{FRAME}\S*labelIds\.png has the label 34.*0 to 33"),
        (LABELS, np.zeros((12, 20, 3), np.uint8), rf"{FRAME}\S*labelIds\.png has the mode RGB"),
    ],
    ids=["no labels", "no image", "size", "size of the labels", "label", "channels"],
)
def test_what_is_wrong_with_a_file_names_it(cityscapes, file, pixels, message):
    root, _ = cityscapes
    if pixels is None:
        (root / "cityscapes" / file).unlink()
    else:
        save(root / "cityscapes" / file, pixels)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        data.load_segmentation("cityscapes", root=root).read(range(6))


def test_what_must_be_requested_says_so(tmp_path):
    for name in ("cityscapes", "synthia", "camvid", "camvid-dusk"):
        with pytest.raises(FileNotFoundError, match=f"medbn data info {name}"):
            data.load_segmentation(name, root=tmp_path)
        assert "https://" in data.get(name).instructions
        assert str(tmp_path) in data.get(name).how_to_request(tmp_path)


# From the README of SYNTHIA-RAND-CITYSCAPES; the indices are Cityscapes' training classes.
SYNTHIA = {3: 0, 4: 1, 2: 2, 21: 3, 5: 4, 7: 5, 15: 6, 9: 7, 6: 8, 1: 10, 10: 11, 17: 12, 8: 13, 19: 15, 12: 17, 11: 18}


@pytest.fixture(params=[3, 4])
def synthia(request, tmp_path):
    rng, folder = np.random.default_rng(0), tmp_path / "RAND_CITYSCAPES"
    (folder / "GT" / "LABELS").mkdir(parents=True)
    written = {}
    for number in range(40):
        name = f"{number:07d}.png"
        values = rng.integers(0, 60000, (12, 20, request.param)).astype(np.uint16)  # the others: instances
        values[:, :, 0] = draw(rng, list(range(23)))
        save(folder / "RGB" / name, photograph(rng))
        (folder / "GT" / "LABELS" / name).write_bytes(encode_png16(values))
        written[name] = values[:, :, 0]
    return tmp_path, written


def test_synthia_has_the_indices_of_cityscapes(synthia):
    root, written = synthia
    dataset = data.load_segmentation("synthia", root=root)
    assert len(dataset.classes) == 19
    assert dataset.scored == tuple(sorted(SYNTHIA.values()))
    assert len(dataset.scored) == 16
    found = {tuple(labels.flatten().tolist()) for labels in dataset.read(range(len(dataset)))[1]}
    expected = [tuple(SYNTHIA.get(int(number), 255) for number in values.flat) for values in written.values()]
    assert found < set(expected)
    assert len(found) == len(dataset)


def test_synthia_with_13_classes_leaves_three_out(synthia):
    root, _ = synthia
    sixteen, thirteen = (data.load_segmentation("synthia", root=root, classes=count) for count in (16, 13))
    assert len(thirteen.scored) == 13
    _, many = sixteen.read(range(3))
    _, few = thirteen.read(range(3))
    left_out = torch.isin(many, torch.tensor([3, 4, 5]))
    assert left_out.any()
    assert (few[left_out] == data.IGNORE).all()
    assert torch.equal(few[~left_out], many[~left_out])
    assert thirteen.fingerprint != sixteen.fingerprint
    with pytest.raises(ValueError, match="13"):
        data.load_segmentation("synthia", root=root, classes=19)


def test_the_validation_part_of_synthia_is_fixed(synthia):
    root, _ = synthia
    train, val = (data.load_segmentation("synthia", split, root=root) for split in ("train", "val"))
    assert len(train) + len(val) == 40
    from medbn.data.segmentation import synthia as reader

    names = [f"{number:07d}.png" for number in range(9400)]
    held_out = [name for name in names if reader.is_held_out(name)]
    assert len(held_out) == data.get("synthia").images == 2761
    assert held_out[:4] == ["0000005.png", "0000009.png", "0000012.png", "0000014.png"]


@pytest.fixture
def camvid(tmp_path):
    rng, folder = np.random.default_rng(0), tmp_path / "CamVid"
    parts = {"train": ["0001TP_1", "0006R0_1", "0016E5_1"], "val": ["0016E5_2"], "test": ["0001TP_2", "Seq05VD_1"]}
    for part, stems in parts.items():
        for stem in stems:
            save(folder / "CamVid_RGB" / f"{stem}.png", photograph(rng))
            save(folder / "CamVidGray" / f"{stem}_L.png", draw(rng, [*range(11), 255]))
        lines = [f"CamVid_RGB/{stem}.png CamVidGray/{stem}_L.png" for stem in stems]
        (folder / f"camvid_{part}.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_camvid_follows_its_lists_and_separates_dusk(camvid):
    sizes = {
        (name, split): len(data.load_segmentation(name, split, root=camvid))
        for name in ("camvid", "camvid-day")
        for split in ("train", "val", "test")
    }
    assert list(sizes.values()) == [3, 1, 2, 2, 1, 1]
    dusk = data.load_segmentation("camvid-dusk", root=camvid)
    assert len(dusk) == 2
    assert dusk.read(range(2))[1].unique().tolist() == [*range(11), 255]
    assert dusk.classes[3] == "road"
    with pytest.raises(ValueError, match="camvid-day"):
        data.load_segmentation("camvid-dusk", "train", root=camvid)
    (camvid / "CamVid/CamVidGray/0001TP_2_L.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"0001TP_2_L\.png"):
        data.load_segmentation("camvid", root=camvid)
