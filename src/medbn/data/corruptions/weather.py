"""Weather: snow, frost, fog, brightness."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from . import filters
from .base import Floats, ImageRandom, Level, register, round_down
from .frost import frost_folder, frost_photographs, synthetic_frost
from .plasma import plasma, plasma_side


@register(
    "snow",
    group="weather",
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
def snow(x: Tensor, level: Level, random: ImageRandom) -> Tensor:
    """Add flakes of thresholded noise, blurred by motion in two opposite directions, to a whitened image.

    The constants: mean and standard deviation of the noise, the flakes' zoom factor, the threshold, radius and σ of the
    motion blur, and the weight of the original image.
    """
    loc, scale, factor, threshold, radius, sigma, weight = level
    flakes = random.draw(lambda rng: rng.normal(loc, scale, size=(1, *x.shape[2:])))
    flakes = filters.zoom(flakes, factor)
    flakes = round_down(flakes.masked_fill(flakes < threshold, 0.0).clamp(0, 1) * 255)
    flakes = round_down(filters.motion(flakes, radius, sigma, random.draw(lambda rng: rng.uniform(-135, -45))))
    grey = _to_grey(x) if x.shape[1] == 3 else x
    whitened = torch.maximum(x, grey * 1.5 + 0.5 * 255)
    return weight * x + (1 - weight) * whitened + flakes + flakes.rot90(2, (2, 3))


@register(
    "frost",
    group="weather",
    small=[(1, 0.2, 0.2), (1, 0.3, 0.2), (0.9, 0.4, 0.2), (0.85, 0.4, 0.2), (0.75, 0.45, 0.2)],
    large=[(1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)],
    uses_frost=True,
    version=2,  # 1 rounded the size of photographs up, and used the last position of a crop
)
def frost(x: Tensor, level: Level, random: ImageRandom) -> Tensor:
    """Mix the image with a random crop of a photograph of frost.

    The constants: the weight of the image, that of the photograph, and the scale of the photograph.
    """
    image_weight, frost_weight, scale = level
    height, width = x.shape[2:]
    if random.frost == "synthetic":
        crops = random.draw(lambda rng: synthetic_frost(rng, height, width))
    else:
        photographs = frost_photographs(frost_folder(random.frost), scale, height, width)

        def crop(rng: np.random.Generator) -> Floats:
            photograph = photographs[rng.integers(len(photographs))]
            # Without the last position, as in the benchmark, unless it is the only one.
            top = rng.integers(max(photograph.shape[1] - height, 1))
            left = rng.integers(max(photograph.shape[2] - width, 1))
            return photograph[:, top : top + height, left : left + width]

        crops = random.draw(crop)
    if x.shape[1] == 1:
        crops = _to_grey(crops)
    return image_weight * x + frost_weight * crops


@register(
    "fog",
    group="weather",
    small=[(0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)],
    large=[(1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)],
)
def fog(x: Tensor, level: Level, random: ImageRandom) -> Tensor:
    """Add a cloudy plasma, and scale the image so that its brightest value stays the same.

    The constants are the strength of the fog and the decay of its roughness.
    """
    strength, decay = level
    height, width = x.shape[2:]
    side = plasma_side(height, width)
    clouds = random.draw(lambda rng: plasma(rng, side, decay)[None, :height, :width])
    brightest = x.amax(dim=(1, 2, 3), keepdim=True)
    return (x + 255 * strength * clouds) * (brightest / (brightest + 255 * strength))


@register("brightness", group="weather", small=[0.05, 0.1, 0.15, 0.2, 0.3], large=[0.1, 0.2, 0.3, 0.4, 0.5])
def brightness(x: Tensor, level: Level, random: ImageRandom) -> Tensor:
    """Raise the value of HSV by a constant, with hue and saturation unchanged; black becomes grey."""
    (increase,) = level
    value = x.amax(dim=1, keepdim=True)
    raised = (value + 255 * increase).clamp(max=255)
    return torch.where(value > 0, x * (raised / value.clamp(min=1)), raised)


def _to_grey(x: Tensor) -> Tensor:
    return 0.299 * x[:, 0:1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:3]
