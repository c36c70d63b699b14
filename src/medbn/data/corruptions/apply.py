"""Corrupt a batch of images."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from .base import Corruption, ImageRandom, get, round_down
from .frost import frost_folder

SEVERITIES = (1, 2, 3, 4, 5)

_VALUES_AT_ONCE = 2**20


def corrupt(
    images: Tensor, name: str, severity: int, *, seed: int = 0, first: int = 0, frost: str | Path | None = None
) -> Tensor:
    """Return corrupted images, uint8 (N, C, H, W) on the same device.

    Args:
        images: uint8 (N, C, H, W) of one or three channels, at least 8 × 8 pixels.
        name: one of ``available()``.
        severity: 1 to 5.
        seed: of the noise.
        first: the first image's index in its dataset. An image's noise depends on its index, not on its batch.
        frost: a folder of photographs of frost, or ``"synthetic"`` for a drawn texture. By default photographs from
            the folder ``MEDBN_FROST`` or the package ``imagecorruptions``.

    >>> images = torch.full((2, 3, 32, 32), 128, dtype=torch.uint8)
    >>> corrupt(images, "contrast", 5).unique().tolist()
    [128]
    """
    corruption = check(name, severity, frost)
    if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] not in (1, 3):
        raise ValueError(
            f"images must be uint8 of shape (N, 1 or 3, H, W), got {images.dtype} of shape {tuple(images.shape)}."
        )
    height, width = images.shape[2:]
    if min(height, width) < 8:
        raise ValueError(f"images must have at least 8 × 8 pixels, got {height} × {width}.")
    if first < 0 or seed < 0:
        raise ValueError(f"first and seed must not be negative, got first={first}, seed={seed}.")
    level = corruption.level(severity, min(height, width))
    result = torch.empty_like(images)
    count = max(1, _VALUES_AT_ONCE // max(images[0].numel(), 1)) if len(images) else 1
    for start in range(0, len(images), count):
        part = images[start : start + count]
        indices = range(first + start, first + start + len(part))
        random = ImageRandom.from_seed(name, severity, seed, indices, images.device, frost)
        values = round_down(corruption.apply(part.float(), level, random))
        result[start : start + count] = values.clamp(0, 255).to(torch.uint8)
    return result


def corrupt_labels(labels: Tensor, name: str, severity: int, *, seed: int = 0, first: int = 0) -> Tensor:
    """Return the labels of every pixel after a corruption: moved with the pixels where it moves them, else unchanged.

    Args:
        labels: integers (N, H, W).
        name: one of ``available()``.
        severity: 1 to 5.
        seed: as given to ``corrupt`` for the images.
        first: likewise.
    """
    corruption = get(name)
    check_severity(severity)
    if corruption.move_labels is None or not len(labels):
        return labels
    level = corruption.level(severity, min(labels.shape[1:]))
    moved = torch.empty_like(labels)
    for position in range(len(labels)):
        one = slice(position, position + 1)
        index = first + position
        random = ImageRandom.from_seed(name, severity, seed, range(index, index + 1), labels.device, None)
        moved[one] = corruption.move_labels(labels[one], level, random)
    return moved


def check(name: str, severity: int, frost: str | Path | None = None) -> Corruption:
    """Return the corruption of that name; raise an error if its severity or its files do not exist."""
    corruption = get(name)
    check_severity(severity)
    if corruption.uses_frost and frost != "synthetic":
        frost_folder(frost)
    return corruption


def check_severity(severity: int) -> None:
    """Raise an error unless the severity is 1, 2, 3, 4 or 5."""
    if severity not in SEVERITIES:
        raise ValueError(f"severity must be 1, 2, 3, 4 or 5, got {severity!r}.")
