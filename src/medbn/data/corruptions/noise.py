"""Noise: gaussian, shot, impulse."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from .base import Draw, Level, corruption


@corruption("noise", small=[0.04, 0.06, 0.08, 0.09, 0.10], large=[0.08, 0.12, 0.18, 0.26, 0.38])
def gaussian_noise(x: Tensor, level: Level, draw: Draw) -> Tensor:
    """Independent Gaussian noise on every value; the constant is its standard deviation on the scale of [0, 1]."""
    (sigma,) = level
    return x + draw.each(lambda stream: stream.standard_normal(x.shape[1:], dtype=np.float32)) * (255 * sigma)


@corruption("noise", small=[500, 250, 100, 75, 50], large=[60, 25, 12, 5, 3])
def shot_noise(x: Tensor, level: Level, draw: Draw) -> Tensor:
    """Photon counting: Poisson with the given number of photons at full brightness."""
    (photons,) = level
    rates = iter(x.cpu().double().numpy() * (photons / 255))
    return draw.each(lambda stream: stream.poisson(next(rates))) * (255 / photons)


@corruption("noise", small=[0.01, 0.02, 0.03, 0.05, 0.07], large=[0.03, 0.06, 0.09, 0.17, 0.27])
def impulse_noise(x: Tensor, level: Level, draw: Draw) -> Tensor:
    """Salt and pepper: that share of the values becomes 0 or 255, half of them each."""
    (amount,) = level
    u = draw.each(lambda stream: stream.random(x.shape[1:], dtype=np.float32))
    return x.masked_fill(u < amount, 0.0).masked_fill(u < amount / 2, 255.0)
