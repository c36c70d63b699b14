"""Weather: snow, frost, fog, brightness."""

from __future__ import annotations

import functools
import importlib.util
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..dataset import digest
from . import filters
from .base import Draw, Floats, Level, corruption, floored

FROST_FILES = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")
"""The photographs that the benchmark draws from."""


@corruption(
    "weather",
    small=[
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ],
    large=[
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ],
)
def snow(x: Tensor, level: Level, draw: Draw) -> Tensor:
    """Flakes from thresholded noise, blown by the wind in two opposite directions, over a whitened image."""
    loc, scale, factor, threshold, radius, sigma, keep = level
    flakes = draw.each(lambda stream: stream.normal(loc, scale, size=(1, *x.shape[2:])))
    flakes = filters.zoom(flakes, factor)
    flakes = floored(flakes.masked_fill(flakes < threshold, 0.0).clamp(0, 1) * 255)
    flakes = floored(filters.motion(flakes, radius, sigma, draw.each(lambda stream: stream.uniform(-135, -45))))
    grey = _grey(x) if x.shape[1] == 3 else x
    whitened = torch.maximum(x, grey * 1.5 + 0.5 * 255)
    return keep * x + (1 - keep) * whitened + flakes + flakes.rot90(2, (2, 3))


@corruption(
    "weather",
    small=[(1, 0.2, 0.2), (1, 0.3, 0.2), (0.9, 0.4, 0.2), (0.85, 0.4, 0.2), (0.75, 0.45, 0.2)],
    large=[(1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)],
)
def frost(x: Tensor, level: Level, draw: Draw) -> Tensor:
    """A frosted window: mixed with a random piece of a photograph of frost, which the last constant scales."""
    keep, share, scale = level
    height, width = x.shape[2:]
    if draw.frost == "synthetic":
        pieces = draw.each(lambda stream: synthetic_frost(stream, height, width))
    else:
        photographs = frost_photographs(frost_folder(draw.frost), scale, height, width)

        def piece(stream: np.random.Generator) -> Floats:
            photograph = photographs[stream.integers(len(photographs))]
            top = stream.integers(photograph.shape[1] - height + 1)
            left = stream.integers(photograph.shape[2] - width + 1)
            return photograph[:, top : top + height, left : left + width]

        pieces = draw.each(piece)
    if x.shape[1] == 1:
        pieces = _grey(pieces)
    return keep * x + share * pieces


def _grey(x: Tensor) -> Tensor:
    return 0.299 * x[:, 0:1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:3]


def frost_folder(given: str | Path | None) -> Path:
    """Where the photographs are: what was given, ``MEDBN_FROST``, or the installed package ``imagecorruptions``."""
    folder = given if given is not None else os.environ.get("MEDBN_FROST") or None
    if folder is not None:
        found = Path(folder)
    else:
        package = importlib.util.find_spec("imagecorruptions")
        found = Path((package.submodule_search_locations or [""])[0]) / "frost" if package else Path()
    missing = [name for name in FROST_FILES if not (found / name).is_file()]
    if missing and folder is not None:
        raise FileNotFoundError(f"no frost photographs in {found}: {', '.join(missing)} are missing.")
    if missing:
        raise FileNotFoundError(
            "the corruption 'frost' needs photographs of frost: pip install --no-deps imagecorruptions, or give their"
            " folder (frost=FOLDER or MEDBN_FROST), or draw a texture instead (frost='synthetic')."
        )
    return found


def frost_fingerprint(given: str | Path | None) -> str:
    """What the images of ``frost`` depend on beside their seed: "synthetic", or a hash of the photographs."""
    if given == "synthetic":
        return "synthetic"
    folder = frost_folder(given)
    return digest(*((folder / name).read_bytes() for name in FROST_FILES))


@functools.cache
def frost_photographs(folder: Path, scale: float, height: int, width: int) -> tuple[Floats, ...]:
    """The photographs at a scale, as (3, H, W) in [0, 255]; never smaller than the images."""
    from PIL import Image

    photographs = []
    for name in FROST_FILES:
        with Image.open(folder / name) as file:
            picture = np.asarray(file.convert("RGB"), dtype=np.float32).transpose(2, 0, 1)
        fit = max(scale, height / picture.shape[1], width / picture.shape[2])
        x = torch.from_numpy(picture.copy()).unsqueeze(0)
        photographs.append(_scaled(_scaled(x, 2, fit), 3, fit)[0].numpy())
    return tuple(photographs)


def _scaled(x: Tensor, dim: int, scale: float) -> Tensor:
    """Bilinear, without smoothing first and with pixel centres on pixel centres, as the benchmark scaled them."""
    old = x.shape[dim]
    size = math.ceil(round(old * scale, 6))
    places = ((np.arange(size) + 0.5) / scale - 0.5).clip(0, old - 1)
    low = np.floor(places).astype(np.int64)
    shape = [1, 1, 1, 1]
    shape[dim] = size
    weight = torch.from_numpy((places - low).astype(np.float32)).view(shape)
    before = x.index_select(dim, torch.from_numpy(low))
    return before * (1 - weight) + x.index_select(dim, torch.from_numpy((low + 1).clip(0, old - 1))) * weight


def synthetic_frost(stream: np.random.Generator, height: int, width: int) -> Any:
    """A texture that stands in for a photograph of frost, (3, H, W) in [0, 255].

    Bright, slightly blue veins (the ridges of one plasma) on a darker, cloudy ground (another plasma).
    """
    side = _power_of_two(max(height, width))
    clouds, ridges = (plasma(stream, side, decay)[:height, :width] for decay in (2.0, 1.5))
    veins = (1 - np.abs(2 * ridges - 1)) ** 3
    bright = 0.15 + 0.45 * clouds + 0.4 * veins
    tint = np.array([0.9, 0.97, 1.0]).reshape(3, 1, 1)
    return 255 * np.clip(bright, 0, 1) * tint


@corruption(
    "weather",
    small=[(0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)],
    large=[(1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)],
)
def fog(x: Tensor, level: Level, draw: Draw) -> Tensor:
    """Fog: a cloudy plasma added, and the brightest value kept where it was."""
    strength, decay = level
    height, width = x.shape[2:]
    side = _power_of_two(max(height, width))
    clouds = draw.each(lambda stream: plasma(stream, side, decay)[None, :height, :width])
    brightest = x.amax(dim=(1, 2, 3), keepdim=True)
    return (x + 255 * strength * clouds) * (brightest / (brightest + 255 * strength))


def plasma(stream: np.random.Generator, side: int, decay: float) -> Floats:
    """A fractal in [0, 1] by diamond-square on a torus; ``decay`` is the loss of roughness per halving."""
    field: Floats = np.zeros((side, side))
    step, roughness = side, 100.0

    def wobble(total: Floats) -> Floats:
        return total / 4 + roughness * stream.uniform(-roughness, roughness, total.shape)

    while step >= 2:
        half = step // 2
        corners = field[::step, ::step]
        squares = corners + np.roll(corners, -1, axis=0)
        field[half::step, half::step] = wobble(squares + np.roll(squares, -1, axis=1))
        centres = field[half::step, half::step]
        beside = centres + np.roll(centres, 1, axis=0) + corners + np.roll(corners, -1, axis=1)
        field[::step, half::step] = wobble(beside)
        above = centres + np.roll(centres, 1, axis=1) + corners + np.roll(corners, -1, axis=0)
        field[half::step, ::step] = wobble(above)
        step, roughness = half, roughness / decay
    field -= field.min()
    field /= field.max()
    return field


def _power_of_two(size: int) -> int:
    return 1 << max(size - 1, 1).bit_length()


@corruption("weather", small=[0.05, 0.1, 0.15, 0.2, 0.3], large=[0.1, 0.2, 0.3, 0.4, 0.5])
def brightness(x: Tensor, level: Level, draw: Draw) -> Tensor:
    """The value of HSV raised by a constant, hue and saturation kept: all channels scaled alike; black becomes grey."""
    (more,) = level
    value = x.amax(dim=1, keepdim=True)
    raised = (value + 255 * more).clamp(max=255)
    return torch.where(value > 0, x * (raised / value.clamp(min=1)), raised)
