"""Plasma, a fractal that looks like clouds: the texture of *fog* and of synthetic frost."""

from __future__ import annotations

import numpy as np

from .base import Floats


def plasma(rng: np.random.Generator, side: int, decay: float) -> Floats:
    """Return a fractal (side, side) in [0, 1], by the diamond-square algorithm on a torus.

    Args:
        rng: draws the random offsets.
        side: a power of two.
        decay: by how much the roughness is divided when the distance between points is halved.
    """
    field: Floats = np.zeros((side, side))
    step, roughness = side, 100.0

    def add_noise(total: Floats) -> Floats:
        return total / 4 + roughness * rng.uniform(-roughness, roughness, total.shape)

    while step >= 2:
        half = step // 2
        corners = field[::step, ::step]
        squares = corners + np.roll(corners, -1, axis=0)
        field[half::step, half::step] = add_noise(squares + np.roll(squares, -1, axis=1))
        centres = field[half::step, half::step]
        beside = centres + np.roll(centres, 1, axis=0) + corners + np.roll(corners, -1, axis=1)
        field[::step, half::step] = add_noise(beside)
        above = centres + np.roll(centres, 1, axis=1) + corners + np.roll(corners, -1, axis=0)
        field[half::step, ::step] = add_noise(above)
        step, roughness = half, roughness / decay
    field -= field.min()
    field /= field.max()
    return field


def plasma_side(height: int, width: int) -> int:
    """Return the smallest power of two that is not below height and width, and at least 2."""
    return 1 << max(max(height, width) - 1, 1).bit_length()
