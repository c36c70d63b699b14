"""Cityscapes (Cordts et al., CVPR 2016) in the layout that its authors publish, with its 19 training classes."""

from __future__ import annotations

from pathlib import Path

from .class_table import ClassTable
from .dataset import IGNORE, Colour, SegmentationDataset
from .files import list_files, match_files, open_pairs

CLASSES: dict[str, Colour] = {
    "road": (128, 64, 128),
    "sidewalk": (244, 35, 232),
    "building": (70, 70, 70),
    "wall": (102, 102, 156),
    "fence": (190, 153, 153),
    "pole": (153, 153, 153),
    "traffic light": (250, 170, 30),
    "traffic sign": (220, 220, 0),
    "vegetation": (107, 142, 35),
    "terrain": (152, 251, 152),
    "sky": (70, 130, 180),
    "person": (220, 20, 60),
    "rider": (255, 0, 0),
    "car": (0, 0, 142),
    "truck": (0, 0, 70),
    "bus": (0, 60, 100),
    "train": (0, 80, 100),
    "motorcycle": (0, 0, 230),
    "bicycle": (119, 11, 32),
}
TRAIN_IDS = ClassTable.in_order(CLASSES)
"""Label files whose numbers are the 19 training classes; 255 does not count."""

_LABEL_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
"""The numbers of the 19 classes in the published ``labelIds`` files, in the order of the classes."""
LABEL_IDS = ClassTable(
    TRAIN_IDS.names,
    TRAIN_IDS.colours,
    dict.fromkeys(range(34), IGNORE) | {number: index for index, number in enumerate(_LABEL_IDS)},
)

HOW_TO_GET = """\
Cityscapes must be requested from its authors: register at https://www.cityscapes-dataset.com and download
leftImg8bit_trainvaltest.zip (11 GB) and gtFine_trainvaltest.zip (241 MB). Unpack both into
  {path}
so that there are
  leftImg8bit/train/CITY/..._leftImg8bit.png   gtFine/train/CITY/..._gtFine_labelIds.png
  leftImg8bit/val/CITY/..._leftImg8bit.png     gtFine/val/CITY/..._gtFine_labelIds.png
Its labels of the test part are not public: the test split is the validation part."""


def open_cityscapes(
    folder: Path, split: str = "test", *, size: tuple[int, int] | None = None, shuffle: int | None = 0
) -> SegmentationDataset:
    """Open Cityscapes: the 2,975 training images, or the 500 of the validation part.

    Args:
        folder: has ``leftImg8bit/`` and ``gtFine/``.
        split: "train"; "val" and "test" both open the validation part, because the test labels are not public.
        size: see ``open_pairs``; the published images have 1024 × 2048 px.
        shuffle: see ``open_pairs``.
    """
    split = "train" if split == "train" else "val"
    images, labels = "_leftImg8bit.png", "_gtFine_labelIds.png"
    pairs = match_files(
        {f.name.removesuffix(images): f for f in list_files(folder / "leftImg8bit" / split, images.lower())},
        {f.name.removesuffix(labels): f for f in list_files(folder / "gtFine" / split, labels.lower())},
    )
    return open_pairs("cityscapes", split, pairs, LABEL_IDS, size=size, shuffle=shuffle)
