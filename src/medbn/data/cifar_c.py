"""Folders in the layout of CIFAR-10-C: one ``.npy`` file of images per corruption, and one of labels.

A file holds the images of severity 1, then those of severity 2, and so on up to 5.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from .arrays import LABELS, map_array, map_images, part_of_severity, read_images, read_manifest, stored_severities
from .dataset import Dataset, digest

MOST_CLASSES = 100_000
"""A larger label is an error: classes without names are numbered, and one label could ask for billions of them."""


def load_cifar_c(
    path: str | Path, corruption: str, severity: int, *, name: str | None = None, classes: tuple[str, ...] | None = None
) -> Dataset:
    """Open one corruption at one severity.

    The file is memory-mapped: only the images that are used are read.

    Args:
        path: the folder.
        corruption: the file's name without ``.npy``.
        severity: 1 to 5.
        name: what reports call the dataset; by default the folder's name.
        classes: the names of the classes; by default those in the manifest, or numbers.
    """
    folder = Path(path)
    part_images, labels = map_images(folder, corruption, severity), map_array(folder / LABELS)
    stored = stored_severities(folder)
    count = len(stored) * len(part_images)
    if labels.shape != (count,) or labels.dtype.kind not in "ui":
        raise ValueError(
            f"labels.npy of {folder} holds {labels.dtype} of shape {labels.shape}; expected {count} integers."
        )
    part_labels = torch.from_numpy(labels[part_of_severity(count, severity, stored)].astype(np.int64))
    largest = int(labels.max())
    if largest >= MOST_CLASSES:
        raise ValueError(
            f"labels.npy of {folder} has the label {largest}; a dataset has at most {MOST_CLASSES} classes."
        )
    classes = classes or _class_names(folder, largest + 1)
    if not 0 <= int(part_labels.min()) <= int(part_labels.max()) < len(classes):
        raise ValueError(f"labels.npy of {folder} has labels outside 0 to {len(classes) - 1}.")

    return Dataset(
        f"{name or folder.name}/{corruption}/{severity}",
        "test",
        classes,
        part_labels,
        (3, part_images.shape[1], part_images.shape[2]),
        lambda indices: read_images(part_images, indices),
        lambda: digest(part_images, part_labels.numpy()),
    )


def _class_names(folder: Path, count: int) -> tuple[str, ...]:
    manifest = read_manifest(folder)
    return tuple(manifest["classes"]) if manifest else tuple(str(number) for number in range(count))
