"""Any folder with ``images/``, ``labels/`` and a table of classes."""

from __future__ import annotations

from collections.abc import Callable, Container
from pathlib import Path

from ..._errors import unknown_name
from ..dataset import read_text
from ..image_folder import SUFFIXES
from . import camvid, cityscapes, synthia
from .class_table import ClassTable, read_class_table
from .dataset import SegmentationDataset
from .files import Pair, list_files, match_files, open_pairs

KNOWN_TABLES = {
    "cityscapes": cityscapes.TRAIN_IDS,
    "cityscapes-label-ids": cityscapes.LABEL_IDS,
    "camvid": camvid.TABLE,
}
"""What ``classes = "NAME"`` may name."""
TABLE_FILE = "classes.toml"

_LISTS = {"train": ("train.txt",), "val": ("val.txt", "valid.txt"), "test": ("test.txt",)}


def find_opener(path: str | Path) -> Callable[..., SegmentationDataset] | None:
    """Return the function that opens a folder in the layout of a segmentation dataset; None for another folder."""
    folder = Path(path)
    if (folder / "images").is_dir() and (folder / "labels").is_dir():
        return load_segmentation_folder
    if (folder / "leftImg8bit").is_dir() and (folder / "gtFine").is_dir():
        return cityscapes.open_cityscapes
    if (folder / "RGB").is_dir() and (folder / "GT" / "LABELS").is_dir():
        return synthia.open_synthia
    if (folder / "CamVid_RGB").is_dir() and (folder / "camvid_test.txt").is_file():
        return camvid.open_camvid
    return None


def load_segmentation_folder(
    path: str | Path,
    split: str = "test",
    *,
    classes: str | ClassTable | None = None,
    size: tuple[int, int] | None = None,
    shuffle: int | None = 0,
    name: str | None = None,
) -> SegmentationDataset:
    """Open a folder with ``images/`` and ``labels/``, whose files have the same names up to the suffix.

    The classes are in ``classes.toml``: ``classes = "cityscapes"`` for label files with the numbers of Cityscapes' 19
    training classes (255 does not count), or one table per class:

        [[classes]]
        name = "road"
        colour = [128, 64, 128]
        labels = [1, 6]        # the numbers in the label files; by default its position, from 0

    ``ignore = [0, 255]``, at the top, lists numbers that do not count (by default 255).

    Splits are lists of file names, ``train.txt``, ``val.txt`` (or ``valid.txt``) and ``test.txt``. Without a list,
    "train" is what no other list names, "test" is the same as "val", and a folder without lists is all "test".

    Args:
        path: the folder.
        split: "train", "val" or "test".
        classes: the name of a known table, or a table; by default the file ``classes.toml``.
        size: see ``open_pairs``.
        shuffle: see ``open_pairs``.
        name: what reports call the dataset; by default the folder's name.
    """
    folder = Path(path)
    for part in ("images", "labels"):
        if not (folder / part).is_dir():
            raise FileNotFoundError(
                f"no folder {folder / part}: expected images/, labels/ and {TABLE_FILE}, or the layout of Cityscapes,"
                " SYNTHIA or CamVid."
            )
    table = classes if isinstance(classes, ClassTable) else _find_table(folder, classes)
    pairs = match_files(_by_stem(folder, "images"), _by_stem(folder, "labels"))
    return open_pairs(
        name or folder.resolve().name, split, _choose(folder, pairs, split), table, size=size, shuffle=shuffle
    )


def _find_table(folder: Path, name: str | None) -> ClassTable:
    if name is not None:
        if name not in KNOWN_TABLES:
            raise unknown_name("class table", name, KNOWN_TABLES)
        return KNOWN_TABLES[name]
    if not (folder / TABLE_FILE).is_file():
        raise FileNotFoundError(
            f"{folder / TABLE_FILE} is missing: it names the classes. For labels with the numbers of Cityscapes' 19"
            ' training classes it is the line classes = "cityscapes"; docs/data.md shows a table of your own.'
        )
    return read_class_table(folder / TABLE_FILE, KNOWN_TABLES)


def _by_stem(folder: Path, kind: str) -> dict[str, Path]:
    """Return the image files of ``images/`` or ``labels/`` by their path without suffix."""
    files: dict[str, Path] = {}
    for file in list_files(folder / kind, SUFFIXES):
        key = _strip_suffix(file.relative_to(folder / kind).as_posix())
        if key in files:
            raise ValueError(f"{files[key]} and {file} have the same name up to the suffix.")
        files[key] = file
    return files


def _choose(folder: Path, pairs: list[Pair], split: str) -> list[Pair]:
    """Return the pairs of a split."""
    by_key = {_strip_suffix(image.relative_to(folder / "images").as_posix()): (image, label) for image, label in pairs}
    lists = {part: keys for part in _LISTS if (keys := _read_list(folder, part, by_key)) is not None}
    if split == "test" and "test" not in lists:
        split = "val"
    if split in lists:
        return [by_key[key] for key in sorted(lists[split])]
    if split == "val" and not lists:
        return pairs
    if split == "train" and lists:
        listed = set().union(*lists.values())
        return [by_key[key] for key in sorted(by_key.keys() - listed)]
    raise FileNotFoundError(
        f"{folder} has no {split} split: expected a list of file names, {folder / _LISTS[split][0]}."
    )


def _read_list(folder: Path, split: str, known: Container[str]) -> set[str] | None:
    """Return the names in a split's list, without suffixes; None if there is no list."""
    for name in _LISTS[split]:
        file = folder / name
        if file.is_file():
            lines = [line.strip() for line in read_text(file).splitlines() if line.strip()]
            for line in lines:
                if _strip_suffix(line) not in known:
                    raise FileNotFoundError(f"{file} names {line}, which is not in {folder / 'images'}.")
            return {_strip_suffix(line) for line in lines}
    return None


def _strip_suffix(name: str) -> str:
    """Return the name of an image file without its suffix."""
    stem, dot, suffix = name.rpartition(".")
    return stem if f"{dot}{suffix}".lower() in SUFFIXES else name
