"""CamVid (Brostow et al., 2009) with 11 classes: 701 frames of five drives through Cambridge, one of them at dusk."""

from __future__ import annotations

from pathlib import Path

from ..dataset import read_text
from .class_table import ClassTable
from .dataset import SegmentationDataset
from .files import Pair, open_pairs

TABLE = ClassTable.in_order(
    {
        "sky": (128, 128, 128),
        "building": (128, 0, 0),
        "pole": (192, 192, 128),
        "road": (128, 64, 128),
        "sidewalk": (0, 0, 192),
        "tree": (128, 128, 0),
        "sign": (192, 128, 128),
        "fence": (64, 64, 128),
        "car": (64, 0, 128),
        "pedestrian": (64, 64, 0),
        "bicyclist": (0, 128, 192),
    }
)
DUSK = "0001TP"
"""The drive at dusk; the others are by day."""

HOW_TO_GET = """\
CamVid with its 11 classes is on GitHub, for research: git clone https://github.com/lih627/CamVid
  {path}
It has CamVid_RGB/ and CamVidGray/, and the lists camvid_train.txt, camvid_val.txt and camvid_test.txt."""


def open_camvid(
    folder: Path, split: str = "test", *, size: tuple[int, int] | None = None, shuffle: int | None = 0
) -> SegmentationDataset:
    """Open CamVid: 367 images to train, 101 to validate, 233 to test.

    Args:
        folder: a clone of lih627/CamVid.
        split: "train", "val" or "test".
        size: see ``open_pairs``; the images have 720 × 960 px.
        shuffle: see ``open_pairs``.
    """
    return open_pairs("camvid", split, _read_list(folder, split), TABLE, size=size, shuffle=shuffle)


def open_camvid_day(
    folder: Path, split: str = "test", *, size: tuple[int, int] | None = None, shuffle: int | None = 0
) -> SegmentationDataset:
    """Open the frames of CamVid's splits that were taken by day; the arguments are those of ``open_camvid``."""
    pairs = [pair for pair in _read_list(folder, split) if not _is_dusk(pair)]
    return open_pairs("camvid-day", split, pairs, TABLE, size=size, shuffle=shuffle)


def open_camvid_dusk(
    folder: Path, split: str = "test", *, size: tuple[int, int] | None = None, shuffle: int | None = 0
) -> SegmentationDataset:
    """Open all 124 frames that were taken at dusk, for models that were trained by day; there is only a test split."""
    if split == "train":
        raise ValueError("camvid-dusk has only a test split; camvid-day has images to train.")
    pairs = [pair for part in ("train", "val", "test") for pair in _read_list(folder, part) if _is_dusk(pair)]
    return open_pairs("camvid-dusk", "test", pairs, TABLE, size=size, shuffle=shuffle)


def _is_dusk(pair: Pair) -> bool:
    return pair[0].name.startswith(DUSK)


def _read_list(folder: Path, split: str) -> list[Pair]:
    """Return the pairs of a split's list; a file that is missing is an error."""
    list_file = folder / f"camvid_{split}.txt"
    if not list_file.is_file():
        raise FileNotFoundError(f"CamVid is incomplete: {list_file} is missing.")
    pairs = []
    for number, line in enumerate(read_text(list_file).splitlines(), 1):
        if line.strip():
            parts = line.split()
            if len(parts) != 2:
                raise ValueError(
                    f"line {number} of {list_file} has {len(parts)} paths; expected an image and its labels."
                )
            image, label = folder / parts[0], folder / parts[1]
            for file in (image, label):
                if not file.is_file():
                    raise FileNotFoundError(f"CamVid is incomplete: {file} is missing.")
            pairs.append((image, label))
    return pairs
