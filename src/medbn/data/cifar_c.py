"""The layout of CIFAR-10-C: an ``.npy`` file per corruption, severity after severity, beside their labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import corruptions
from .dataset import Dataset, Indices, digest, positions

MANIFEST = "medbn.json"
"""What ``medbn data make`` leaves beside the arrays."""


def arrays(
    path: str | Path, corruption: str, severity: int, *, name: str | None = None, classes: tuple[str, ...] | None = None
) -> Dataset:
    """One corruption at one severity: a fifth of a file that is mapped, never loaded as a whole."""
    folder = Path(path)
    if severity not in corruptions.SEVERITIES:
        raise ValueError(f"severity must be 1, 2, 3, 4 or 5, got {severity!r}.")
    if not (folder / f"{corruption}.npy").is_file():
        if corruption:
            corruptions.get(corruption)
        there = ", ".join(known for known in corruptions.NAMES if (folder / f"{known}.npy").is_file()) or "none"
        if not corruption:
            raise ValueError(f"{folder} needs a corruption: {there}.")
        raise FileNotFoundError(f"no {corruption}.npy in {folder}; it has {there}.")
    images, labels = _mapped(folder / f"{corruption}.npy"), _mapped(folder / "labels.npy")
    if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8 or len(images) % 5 or not len(images):
        raise ValueError(
            f"{folder / corruption}.npy holds {images.dtype} of shape {images.shape}; expected bytes (5 · N, H, W, 3)."
        )
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "ui":
        raise ValueError(
            f"labels.npy of {folder} holds {labels.dtype} of shape {labels.shape}, not {len(images)} numbers."
        )
    count = len(images) // 5
    part = slice((severity - 1) * count, severity * count)
    images, numbers = images[part], torch.from_numpy(labels[part].astype(np.int64))
    classes = classes or _classes(folder, int(labels.max()) + 1)
    if not 0 <= int(numbers.min()) <= int(numbers.max()) < len(classes):
        raise ValueError(f"labels.npy of {folder} has labels outside 0 to {len(classes) - 1}.")

    def read(some: Indices) -> Tensor:
        in_a_row = isinstance(some, range) and some.step == 1
        chosen = images[some.start : some.stop] if in_a_row else images[positions(some).numpy()]  # type: ignore[union-attr]
        return torch.from_numpy(np.array(chosen)).permute(0, 3, 1, 2).contiguous()

    return Dataset(
        f"{name or folder.name}/{corruption}/{severity}",
        "test",
        classes,
        numbers,
        (3, images.shape[1], images.shape[2]),
        read,
        lambda: digest(images, numbers.numpy()),
    )


def _classes(folder: Path, count: int) -> tuple[str, ...]:
    noted = manifest(folder)
    return tuple(noted["classes"]) if noted else tuple(str(number) for number in range(count))


def manifest(folder: Path) -> dict[str, Any] | None:
    """What ``medbn data make`` has noted about a folder; None if it did not make it."""
    file = folder / MANIFEST
    if not file.is_file():
        return None
    try:
        noted = json.loads(file.read_text())
        if isinstance(noted["classes"], list) and noted["made by"]:
            return dict(noted)
    except (ValueError, KeyError, TypeError):
        pass
    raise ValueError(f"{file} is damaged. Remove the folder and make it again.")


def _mapped(file: Path) -> np.ndarray:
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing.")
    try:
        array: np.ndarray = np.load(file, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{file} is not a readable .npy file: {error}") from None
    return array
