"""The fifteen corruptions of CIFAR-10-C and ImageNet-C (Hendrycks & Dietterich, ICLR 2019), at any image size.

Needs torch, numpy and Pillow. The constants are the published ones at 32 px and at 224 px, and between as
``Corruption.level`` says. The published images were rounded down to bytes, and so are these.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ..._errors import unknown_name
from . import blur, digital, noise, weather
from .base import REGISTRY, Corruption, Draw, floored
from .weather import frost_fingerprint, frost_folder

NAMES = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
"""The fifteen, in the order of the paper's tables."""
SEVERITIES = (1, 2, 3, 4, 5)
VERSION = 1
"""Changes whenever the same seed gives other images."""

_PIXELS_AT_ONCE = 2**20


def available() -> list[str]:
    """The names that ``corrupt`` accepts, in the order of the paper's tables, then any that were added."""
    return [*NAMES, *(name for name in REGISTRY if name not in NAMES)]


def get(name: str) -> Corruption:
    """The corruption of that name."""
    if name not in REGISTRY:
        raise unknown_name("corruption", name, REGISTRY)
    return REGISTRY[name]


def check(name: str, severity: int, frost: str | Path | None = None) -> Corruption:
    """The corruption of that name, once everything that it needs is known to be there."""
    found = get(name)
    if severity not in SEVERITIES:
        raise ValueError(f"severity must be 1, 2, 3, 4 or 5, got {severity!r}.")
    if name == "frost" and frost != "synthetic":
        frost_folder(frost)
    return found


def corrupt(
    images: Tensor, name: str, severity: int, *, seed: int = 0, first: int = 0, frost: str | Path | None = None
) -> Tensor:
    """Corrupt uint8 images (N, C, H, W), of one or three channels; the result is uint8 on the same device.

    ``first`` is the number of the first image in its dataset: image *n* gets the same noise whatever batch it comes in.
    ``frost`` is a folder of photographs of frost, or ``"synthetic"``; by default they come from ``MEDBN_FROST`` or the
    package ``imagecorruptions``.

    >>> images = torch.full((2, 3, 32, 32), 128, dtype=torch.uint8)
    >>> corrupt(images, "contrast", 5).unique().tolist()
    [128]
    """
    kind = check(name, severity, frost)
    if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] not in (1, 3):
        raise ValueError(
            f"images must be uint8 of shape (N, 1 or 3, H, W), got {images.dtype} of shape {tuple(images.shape)}."
        )
    height, width = images.shape[2:]
    if min(height, width) < 8:
        raise ValueError(f"images must have at least 8 × 8 pixels, got {height} × {width}.")
    if first < 0 or seed < 0:
        raise ValueError(f"first and seed must not be negative, got first={first}, seed={seed}.")
    level = kind.level(severity, min(height, width))
    result = torch.empty_like(images)
    some = max(1, _PIXELS_AT_ONCE // max(images[0].numel(), 1)) if len(images) else 1
    for start in range(0, len(images), some):
        part = images[start : start + some]
        numbers = range(first + start, first + start + len(part))
        draw = Draw.of(name, severity, seed, numbers, images.device, frost)
        result[start : start + some] = floored(kind.apply(part.float(), level, draw)).clamp(0, 255).to(torch.uint8)
    return result


__all__ = ["NAMES", "SEVERITIES", "VERSION", "Corruption", "available", "check", "corrupt", "frost_fingerprint", "get"]

assert {blur, digital, noise, weather}  # imported to fill the registry
