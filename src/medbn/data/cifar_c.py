"""Folders in the layout of CIFAR-10-C: one ``.npy`` file of images per corruption, and one of labels.

A file holds the images of severity 1, then those of severity 2, and so on up to 5.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import corruptions
from .batching import Indices, index_tensor
from .dataset import Dataset, digest

MANIFEST = "medbn.json"
"""The file that ``generate`` writes beside the arrays: what they were made from, and how."""

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
    corruptions.check_severity(severity)
    if not (folder / f"{corruption}.npy").is_file():
        if corruption:
            corruptions.get(corruption)
        present = ", ".join(each for each in corruptions.available() if (folder / f"{each}.npy").is_file()) or "none"
        if not corruption:
            raise ValueError(f"{folder} needs a corruption: {present}.")
        raise FileNotFoundError(f"no {corruption}.npy in {folder}; it has {present}.")
    images, labels = _map_array(folder / f"{corruption}.npy"), _map_array(folder / "labels.npy")
    if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8 or len(images) % 5 or not images.size:
        raise ValueError(
            f"{folder / corruption}.npy holds {images.dtype} of shape {images.shape}; expected bytes (5 · N, H, W, 3)."
        )
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "ui":
        raise ValueError(
            f"labels.npy of {folder} holds {labels.dtype} of shape {labels.shape}; expected {len(images)} integers."
        )
    count = len(images) // 5
    part = slice((severity - 1) * count, severity * count)
    part_images, part_labels = images[part], torch.from_numpy(labels[part].astype(np.int64))
    largest = int(labels.max())
    if largest >= MOST_CLASSES:
        raise ValueError(
            f"labels.npy of {folder} has the label {largest}; a dataset has at most {MOST_CLASSES} classes."
        )
    classes = classes or _class_names(folder, largest + 1)
    if not 0 <= int(part_labels.min()) <= int(part_labels.max()) < len(classes):
        raise ValueError(f"labels.npy of {folder} has labels outside 0 to {len(classes) - 1}.")

    def read(indices: Indices) -> Tensor:
        if isinstance(indices, range) and indices.step == 1:  # a view, which is faster to read than a list of indices
            chosen = part_images[indices.start : indices.stop]
        else:
            chosen = part_images[index_tensor(indices).numpy()]
        return torch.from_numpy(np.array(chosen)).permute(0, 3, 1, 2).contiguous()

    return Dataset(
        f"{name or folder.name}/{corruption}/{severity}",
        "test",
        classes,
        part_labels,
        (3, images.shape[1], images.shape[2]),
        read,
        lambda: digest(part_images, part_labels.numpy()),
    )


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return what ``generate`` noted about a folder, or None if it did not write the folder."""
    file = folder / MANIFEST
    if not file.is_file():
        return None
    try:
        manifest = json.loads(file.read_text())
        classes, versions = manifest["classes"], manifest.get("versions", {})
        text = isinstance(classes, list) and all(isinstance(one, str) for one in classes)
        if text and isinstance(versions, dict) and manifest["made by"]:
            return dict(manifest)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise ValueError(f"{file} is damaged. Remove the folder and generate it again.")


def _class_names(folder: Path, count: int) -> tuple[str, ...]:
    manifest = read_manifest(folder)
    return tuple(manifest["classes"]) if manifest else tuple(str(number) for number in range(count))


def _map_array(file: Path) -> np.ndarray:
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing.")
    try:
        return np.lib.format.open_memmap(file, mode="r")
    except Exception as error:  # damaged headers raise errors of many types
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(f"{file} is not a readable .npy file: {reason}") from None
