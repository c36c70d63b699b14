"""Noise: Gaussian, shot, impulse."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from .base import ImageRandom, Level, register


@register("gaussian_noise", group="noise", small=[0.04, 0.06, 0.08, 0.09, 0.10], large=[0.08, 0.12, 0.18, 0.26, 0.38])
def gaussian_noise(x: Tensor, level: Level, random: ImageRandom) -> Tensor:
    """Add independent Gaussian noise to every value; the constant is its standard deviation on the scale [0, 1]."""
    (sigma,) = level
    return x + random.draw(lambda rng: rng.standard_normal(x.shape[1:], dtype=np.float32)) * (255 * sigma)


@register("shot_noise", group="noise", small=[500, 250, 100, 75, 50], large=[60, 25, 12, 5, 3])
def shot_noise(x: Tensor, level: Level, random: ImageRandom) -> Tensor:
    """Replace every value by a Poisson count; the constant is the mean count at full brightness."""
    (photons,) = level
    rates = iter(x.cpu().double().numpy() * (photons / 255))
    return random.draw(lambda rng: rng.poisson(next(rates))) * (255 / photons)


@register("impulse_noise", group="noise", small=[0.01, 0.02, 0.03, 0.05, 0.07], large=[0.03, 0.06, 0.09, 0.17, 0.27])
def impulse_noise(x: Tensor, level: Level, random: ImageRandom) -> Tensor:
    """Replace a fraction of the values by 0 or 255, half of them each (salt and pepper)."""
    (amount,) = level
    u = random.draw(lambda rng: rng.random(x.shape[1:], dtype=np.float32))
    return x.masked_fill(u < amount, 0.0).masked_fill(u < amount / 2, 255.0)
