"""The files that ``generate`` writes and ``load`` reads: arrays of images, severity by severity, and what they are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._errors import one_line
from . import corruptions
from .batching import Indices, index_tensor

MANIFEST = "medbn.json"
"""The file that ``generate`` writes beside the arrays: what they were made from, and how."""
LABELS = "labels.npy"


def moved_labels_file(corruption: str) -> str:
    """Return the name of the file of labels that a corruption has moved."""
    return f"{corruption}-labels.npy"


def map_images(folder: Path, corruption: str, severity: int) -> np.ndarray:
    """Return the images of one corruption at one severity, bytes (N, H, W, 3), memory-mapped."""
    corruptions.check_severity(severity)
    if not (folder / f"{corruption}.npy").is_file():
        if corruption:
            corruptions.get(corruption)
        present = ", ".join(each for each in corruptions.available() if (folder / f"{each}.npy").is_file()) or "none"
        if not corruption:
            raise ValueError(f"{folder} needs a corruption: {present}.")
        raise FileNotFoundError(f"no {corruption}.npy in {folder}; it has {present}.")
    images, stored = map_array(folder / f"{corruption}.npy"), stored_severities(folder)
    wrong = images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8
    if wrong or len(images) % len(stored) or not images.size:
        raise ValueError(
            f"{folder / corruption}.npy holds {images.dtype} of shape {images.shape}; expected bytes"
            f" ({len(stored)} · N, H, W, 3)."
        )
    return images[part_of_severity(len(images), severity, stored)]


def stored_severities(folder: Path) -> tuple[int, ...]:
    """Return the severities that the files of a folder hold: all five, unless it was generated with fewer."""
    manifest = read_manifest(folder) or {}
    return tuple(manifest.get("severities", corruptions.SEVERITIES))


def part_of_severity(length: int, severity: int, stored: Sequence[int]) -> slice:
    """Return which part of an array of that length belongs to a severity, of those that are stored."""
    if severity not in stored:
        only = ", ".join(map(str, stored))
        raise ValueError(f"the folder was generated with severity {only} alone, and not {severity}.")
    count, place = length // len(stored), stored.index(severity)
    return slice(place * count, (place + 1) * count)


def read_rows(array: np.ndarray, indices: Indices) -> np.ndarray:
    """Return a copy of some rows of a mapped array."""
    if isinstance(indices, range) and indices.step == 1:  # a view, which is faster to read than a list of indices
        return np.array(array[indices.start : indices.stop])
    return np.array(array[index_tensor(indices).numpy()])


def read_images(images: np.ndarray, indices: Indices) -> Tensor:
    """Return some of the images of ``map_images``, uint8 (N, 3, H, W)."""
    return torch.from_numpy(read_rows(images, indices)).permute(0, 3, 1, 2).contiguous()


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return what ``generate`` noted about a folder, or None if it did not write the folder."""
    file = folder / MANIFEST
    if not file.is_file():
        return None
    try:
        manifest = json.loads(file.read_text())
        classes, versions = manifest["classes"], manifest.get("versions", {})
        text = isinstance(classes, list) and all(isinstance(one, str) for one in classes)
        stored = manifest.get("severities", [*corruptions.SEVERITIES])
        fits = stored and stored == [one for one in corruptions.SEVERITIES if one in stored]
        if text and fits and isinstance(versions, dict) and manifest["made by"]:
            return dict(manifest)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise ValueError(f"{file} is damaged. Remove the folder and generate it again.")


def map_array(file: Path) -> np.ndarray:
    """Return the array of a ``.npy`` file, memory-mapped."""
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing.")
    try:
        return np.lib.format.open_memmap(file, mode="r")
    except Exception as error:  # damaged headers raise errors of many types
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ValueError(f"{file} is not a readable .npy file: {one_line(error, 200)}") from None
