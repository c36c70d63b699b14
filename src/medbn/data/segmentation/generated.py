"""Corrupted segmentation datasets that ``medbn data generate`` wrote."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..arrays import (
    LABELS,
    MANIFEST,
    map_array,
    map_images,
    moved_labels_file,
    part_of_severity,
    read_images,
    read_manifest,
    read_rows,
    stored_severities,
)
from ..batching import Indices
from ..dataset import digest
from .dataset import IGNORE, SegmentationDataset


def is_generated_segmentation(path: str | Path) -> bool:
    """Return whether ``medbn data generate`` wrote the folder, from a segmentation dataset."""
    manifest = read_manifest(Path(path))
    return manifest is not None and manifest.get("task") == "segmentation"


def load_generated_segmentation(
    path: str | Path, corruption: str, severity: int, *, name: str | None = None
) -> SegmentationDataset:
    """Open one corruption at one severity.

    The files are memory-mapped: only the images that are used are read.

    Args:
        path: the folder.
        corruption: the file's name without ``.npy``.
        severity: 1 to 5.
        name: what reports call the dataset; by default the folder's name.
    """
    folder = Path(path)
    manifest = read_manifest(folder)
    if manifest is None or manifest.get("task") != "segmentation":
        raise ValueError(f"{folder} is not a segmentation dataset that medbn data generate wrote.")
    images = map_images(folder, corruption, severity)
    moved = folder / moved_labels_file(corruption)
    file = moved if moved.is_file() else folder / LABELS
    labels, stored = map_array(file), stored_severities(folder)
    count = len(stored) * len(images) if file == moved else len(images)
    if labels.shape != (count, *images.shape[1:3]) or labels.dtype != np.uint8:
        raise ValueError(
            f"{file} holds {labels.dtype} of shape {labels.shape}; expected bytes {(count, *images.shape[1:3])}."
        )
    if file == moved:
        labels = labels[part_of_severity(count, severity, stored)]
    try:
        colours = tuple((int(red), int(green), int(blue)) for red, green, blue in manifest["colours"])
        classes, scored = tuple(manifest["classes"]), tuple(int(index) for index in manifest["scored"])
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{folder / MANIFEST} is damaged. Remove the folder and generate it again.") from None

    def read_labels(indices: Indices) -> Tensor:
        chosen = read_rows(labels, indices)
        wrong = chosen[(chosen >= len(classes)) & (chosen != IGNORE)]
        if len(wrong):
            raise ValueError(f"{file} has the label {wrong[0]}; expected 0 to {len(classes) - 1}, or {IGNORE}.")
        return torch.from_numpy(chosen)

    return SegmentationDataset(
        f"{name or folder.name}/{corruption}/{severity}",
        "test",
        classes,
        colours,
        (images.shape[1], images.shape[2]),
        len(images),
        lambda indices: read_images(images, indices),
        read_labels,
        lambda: digest(images, labels, "\n".join(classes)),
        scored=scored,
    )
