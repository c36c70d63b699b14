"""Blurs: defocus, glass, motion, zoom."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from . import filters
from .base import ImageRandom, Level, register, round_down


@register(
    "defocus_blur",
    group="blur",
    small=[(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)],
    large=[(3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)],
)
def defocus_blur(x: Tensor, level: Level, random: ImageRandom) -> Tensor:
    """Blur with a disk, as a lens out of focus does; the constants are its radius and the softness of its rim."""
    radius, alias = level
    return filters.correlate(x, filters.disk(radius, alias), "reflect")


@register(
    "glass_blur",
    group="blur",
    small=[(0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)],
    large=[(0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)],
)
def glass_blur(x: Tensor, level: Level, random: ImageRandom) -> Tensor:
    """Blur, replace every pixel by a random neighbour, and blur again, as frosted glass does.

    The benchmark meant to *swap* neighbours, but its assignment of array views copies one over the other. The published
    images are made of copies, so ours are too. The constants: the blur's σ, the largest distance of a neighbour, and
    the number of rounds.
    """
    sigma, reach, rounds = level[0], round(level[1]), round(level[2])
    height, width = x.shape[2:]
    x = round_down(filters.gaussian(x, sigma)).clamp(0, 255)
    sources = [_draw_sources(rng, height, width, reach, rounds) for rng in random.generators]
    moved = torch.from_numpy(np.array(sources, dtype=np.int64))
    x = x.flatten(2).gather(2, moved[:, None].expand(-1, x.shape[1], -1).to(x.device)).view_as(x)
    return filters.gaussian(x, sigma)


def _draw_sources(rng: np.random.Generator, height: int, width: int, reach: int, rounds: int) -> list[int]:
    """Return which pixel each pixel of an image becomes a copy of; pixels are numbered row by row."""
    rows, columns = np.arange(height - reach, reach, -1), np.arange(width - reach, reach, -1)
    offsets = rng.integers(-reach, reach, size=(rounds, len(rows), len(columns), 2))
    pixels = rows[:, None] * width + columns
    # One pixel after the other, because a copy may be copied again: on lists, where that is fastest in Python.
    order, sources = pixels.flatten().tolist(), list(range(height * width))
    for dx, dy in zip(offsets[..., 0], offsets[..., 1], strict=True):
        for pixel, neighbour in zip(order, (pixels + dy * width + dx).flatten().tolist(), strict=True):
            sources[pixel] = sources[neighbour]
    return sources


@register(
    "motion_blur",
    group="blur",
    small=[(6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)],
    large=[(10, 3), (15, 5), (15, 8), (15, 12), (20, 15)],
)
def motion_blur(x: Tensor, level: Level, random: ImageRandom) -> Tensor:
    """Blur along a line, at a random angle within 45° of the horizontal, as a moving camera does.

    The constants are the blur's radius and standard deviation.
    """
    radius, sigma = level
    return filters.motion(x, radius, sigma, random.draw(lambda rng: rng.uniform(-45, 45)))


@register(
    "zoom_blur",
    group="blur",
    small=[(1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)],
    large=[(1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)],
)
def zoom_blur(x: Tensor, level: Level, random: ImageRandom) -> Tensor:
    """Average the image with enlargements of itself, as a camera that moves forward does.

    The constants are the largest factor and the step between factors.
    """
    stop, step = level
    factors = np.arange(1, stop, step)
    total = x.clone()
    for factor in factors:
        total += filters.zoom(x, float(factor))
    return total / (len(factors) + 1)
