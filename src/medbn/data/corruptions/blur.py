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
    rows, columns = range(height - reach, reach, -1), range(width - reach, reach, -1)
    size = (rounds, len(rows), len(columns), 2)
    offsets = np.stack([rng.integers(-reach, reach, size=size) for rng in random.generators])
    # One pixel after the other, each for the whole batch: pixels come first, so that one pixel of all images is a row.
    pixels = x.cpu().permute(2, 3, 0, 1).contiguous().numpy()
    images = np.arange(len(x))
    for step in range(rounds):
        for i, row in enumerate(rows):
            for j, column in enumerate(columns):
                dx, dy = offsets[:, step, i, j].T
                pixels[row, column] = pixels[row + dy, column + dx, images]
    return filters.gaussian(torch.from_numpy(pixels).permute(2, 3, 0, 1).contiguous().to(x.device), sigma)


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
