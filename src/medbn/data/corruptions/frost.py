"""The photographs that the corruption *frost* mixes in, and a drawn texture for where there are none."""

from __future__ import annotations

import functools
import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..dataset import digest
from ..image_file import read_rgb
from .base import Floats
from .plasma import plasma, plasma_side

FROST_FILES = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")
"""The benchmark's photographs."""


def frost_folder(frost: str | Path | None) -> Path:
    """Return the folder of the photographs: ``frost``, ``MEDBN_FROST``, or that of the package ``imagecorruptions``."""
    chosen = frost if frost is not None else os.environ.get("MEDBN_FROST") or None
    if chosen is not None:
        folder = Path(chosen)
    else:
        package = importlib.util.find_spec("imagecorruptions")
        folder = Path((package.submodule_search_locations or [""])[0]) / "frost" if package else Path()
    missing = [name for name in FROST_FILES if not (folder / name).is_file()]
    if missing and chosen is not None:
        raise FileNotFoundError(f"no frost photographs in {folder}: {', '.join(missing)} are missing.")
    if missing:
        raise FileNotFoundError(
            "the corruption 'frost' needs photographs of frost: pip install --no-deps imagecorruptions, or give their"
            " folder (frost=FOLDER or MEDBN_FROST), or draw a texture instead (frost='synthetic')."
        )
    return folder


def frost_fingerprint(frost: str | Path | None) -> str:
    """Return what the images of *frost* depend on beside their seed: "synthetic", or a hash of the photographs."""
    if frost == "synthetic":
        return "synthetic"
    folder = frost_folder(frost)
    return digest(*((folder / name).read_bytes() for name in FROST_FILES))


@functools.cache
def frost_photographs(folder: Path, scale: float, height: int, width: int) -> tuple[Floats, ...]:
    """Return the photographs at a scale, (3, H, W) in [0, 255], never smaller than (height, width)."""
    photographs = []
    for name in FROST_FILES:
        photograph = np.asarray(read_rgb(folder / name), dtype=np.float32).transpose(2, 0, 1)
        fit = max(scale, height / photograph.shape[1], width / photograph.shape[2])
        x = torch.from_numpy(photograph.copy()).unsqueeze(0)
        photographs.append(_scale(_scale(x, 2, fit), 3, fit)[0].numpy())
    return tuple(photographs)


def synthetic_frost(rng: np.random.Generator, height: int, width: int) -> Any:
    """Return a texture that resembles frost, (3, H, W) in [0, 255].

    Bright, slightly blue veins (the ridges of one plasma) on a darker, cloudy ground (another plasma).
    """
    side = plasma_side(height, width)
    clouds, ridges = (plasma(rng, side, decay)[:height, :width] for decay in (2.0, 1.5))
    veins = (1 - np.abs(2 * ridges - 1)) ** 3
    bright = 0.15 + 0.45 * clouds + 0.4 * veins
    tint = np.array([0.9, 0.97, 1.0]).reshape(3, 1, 1)
    return 255 * np.clip(bright, 0, 1) * tint


def _scale(x: Tensor, dim: int, scale: float) -> Tensor:
    """Scale one dimension bilinearly, without smoothing first and with aligned pixel centres, as the benchmark does.

    The benchmark calls OpenCV's ``resize``, which rounds sizes to the nearest integer and halves to the even one.
    """
    old = x.shape[dim]
    size = round(old * scale)
    positions = ((np.arange(size) + 0.5) / scale - 0.5).clip(0, old - 1)
    low = np.floor(positions).astype(np.int64)
    shape = [1, 1, 1, 1]
    shape[dim] = size
    weight = torch.from_numpy((positions - low).astype(np.float32)).view(shape)
    before = x.index_select(dim, torch.from_numpy(low))
    return before * (1 - weight) + x.index_select(dim, torch.from_numpy((low + 1).clip(0, old - 1))) * weight
