"""SYNTHIA-RAND-CITYSCAPES (Ros et al., CVPR 2016): 9,400 rendered streets, labelled with Cityscapes' classes."""

from __future__ import annotations

import hashlib
from pathlib import Path

from .cityscapes import TRAIN_IDS
from .class_table import ClassTable
from .dataset import IGNORE, SegmentationDataset
from .files import list_files, match_files, open_pairs
from .label_file import read_first_channel

NUMBERS = {
    "sky": 1, "building": 2, "road": 3, "sidewalk": 4, "fence": 5, "vegetation": 6, "pole": 7, "car": 8,
    "traffic sign": 9, "person": 10, "bicycle": 11, "motorcycle": 12, "traffic light": 15, "rider": 17, "bus": 19,
    "wall": 21,
}  # fmt: skip
"""The numbers of the 16 classes that SYNTHIA shares with Cityscapes."""
NOT_IN_13 = ("wall", "fence", "pole")
"""What the variant of 13 classes leaves out."""
VALIDATION, SEED = 0.3, 0
"""The fraction of the images that are held out, 2,761 of 9,400; and the seed that they are drawn from."""

_TABLE = ClassTable(
    TRAIN_IDS.names,
    TRAIN_IDS.colours,
    dict.fromkeys(range(23), IGNORE) | {number: TRAIN_IDS.names.index(name) for name, number in NUMBERS.items()},
)

HOW_TO_GET = """\
SYNTHIA-RAND-CITYSCAPES must be downloaded from its authors, for research: https://synthia-dataset.net/downloads
(the set "SYNTHIA-RAND-CITYSCAPES (CVPR16)", 21 GB). Unpack the archive RAND_CITYSCAPES so that there are
  {path}/RGB/0000000.png
  {path}/GT/LABELS/0000000.png
The authors name no validation part. The val split is 2,761 of the 9,400 images, drawn from a fixed seed."""


def open_synthia(
    folder: Path,
    split: str = "test",
    *,
    classes: int = 16,
    size: tuple[int, int] | None = None,
    shuffle: int | None = 0,
) -> SegmentationDataset:
    """Open SYNTHIA-RAND-CITYSCAPES with the indices of Cityscapes' 19 classes, of which it has 16.

    Args:
        folder: has ``RGB/`` and ``GT/LABELS/``.
        split: "train"; "val" and "test" both open the validation part.
        classes: 16; or 13, which leaves out wall, fence and pole, as some papers do.
        size: see ``open_pairs``; the published images have 760 × 1280 px.
        shuffle: see ``open_pairs``.
    """
    if classes not in (13, 16):
        raise ValueError(f"SYNTHIA has 16 classes of Cityscapes, or 13 without {', '.join(NOT_IN_13)}; got {classes}.")
    split = "train" if split == "train" else "val"
    pairs = match_files(
        {file.name: file for file in list_files(folder / "RGB", ".png")},
        {file.name: file for file in list_files(folder / "GT" / "LABELS", ".png")},
    )
    pairs = [pair for pair in pairs if is_held_out(pair[0].name) == (split == "val")]
    table = _TABLE if classes == 16 else _TABLE.without(NOT_IN_13)
    name = "synthia" if classes == 16 else "synthia-13"
    return open_pairs(name, split, pairs, table, size=size, shuffle=shuffle, read_numbers=read_first_channel)


def is_held_out(name: str) -> bool:
    """Return whether the image with this file name is in the validation part: a hash of its name decides."""
    return int(hashlib.sha256(f"{SEED}/{name}".encode()).hexdigest()[:8], 16) < VALIDATION * 2**32
