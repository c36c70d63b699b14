"""What a corruption is: a function, its published constants at two image sizes, and a random stream for each image."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..._registry import Registry

Floats = npt.NDArray[Any]
Level = tuple[float, ...]
"""The constants of one severity."""


@dataclass(frozen=True, eq=False)
class ImageRandom:
    """The random numbers for one batch: a generator of its own for each image.

    A generator is seeded with the seed, the corruption, the severity and the image's index in its dataset. So an
    image's result does not depend on the batch it is in, nor (except in a last bit) on the device.
    """

    generators: Sequence[np.random.Generator]
    device: torch.device
    frost: str | Path | None = None
    """Photographs of frost, see ``corrupt``."""

    @classmethod
    def from_seed(
        cls, name: str, severity: int, seed: int, indices: range, device: torch.device, frost: str | Path | None
    ) -> ImageRandom:
        """Return the generators of the images with these indices."""
        key = zlib.crc32(name.encode())
        return cls([np.random.default_rng([seed, key, severity, index]) for index in indices], device, frost)

    def draw(self, function: Callable[[np.random.Generator], Floats | float]) -> Tensor:
        """Call a function with each image's generator, and return the results stacked, as float32."""
        values = np.stack([np.asarray(function(generator), dtype=np.float32) for generator in self.generators])
        return torch.from_numpy(values).to(self.device)


Apply = Callable[[Tensor, Level, ImageRandom], Tensor]
MoveLabels = Callable[[Tensor, Level, ImageRandom], Tensor]
"""Takes and returns the labels (N, H, W) of every pixel, with the random numbers of their images."""


@dataclass(frozen=True)
class Corruption:
    """A named corruption. ``apply`` takes and returns float32 images (N, C, H, W) in [0, 255]."""

    name: str
    group: str
    """One of the benchmark's groups: noise, blur, weather, digital; or another."""
    apply: Apply
    small: Sequence[Level] = field(repr=False)
    """Constants for 32 px (CIFAR-10-C), severities 1 to 5."""
    large: Sequence[Level] = field(repr=False)
    """Constants for 224 px (ImageNet-C)."""
    uses_frost: bool = False
    """Whether it mixes in the photographs of frost, see ``corrupt``."""
    version: int = 1
    """Raised when the same seed gives other images; results of the bench are then run again."""
    move_labels: MoveLabels | None = None
    """For a corruption that moves pixels: moves the labels of segmentation in the same way."""

    def level(self, severity: int, size: int) -> Level:
        """Return the constants for images whose shorter side is ``size``.

        Exactly the published ones up to 32 px and from 224 px on; between, linear in the logarithm of the size.
        """
        return interpolate(self.small[severity - 1], self.large[severity - 1], size)


_registry = Registry[Corruption]("corruption")

available = _registry.available
get = _registry.get
unregister = _registry.unregister


def register(
    name: str,
    *,
    group: str,
    small: Sequence[Any],
    large: Sequence[Any] | None = None,
    uses_frost: bool = False,
    version: int = 1,
    move_labels: MoveLabels | None = None,
    replace: bool = False,
) -> Callable[[Apply], Apply]:
    """Make ``corrupt(images, name, severity)`` apply the decorated function.

    Args:
        name: the corruption's name.
        group: the group that reports list it in.
        small: its constants for images of 32 px: one number or tuple for each of the five severities.
        large: those for 224 px; by default the same.
        uses_frost: see ``Corruption``.
        version: see ``Corruption``.
        move_labels: see ``Corruption``.
        replace: take the place of an earlier corruption of that name.
    """

    def add(function: Apply) -> Apply:
        constants = _levels(small), _levels(small if large is None else large)
        if {len(levels) for levels in constants} != {5}:
            raise ValueError(f"corruption {name!r} needs constants for five severities.")
        corruption = Corruption(name, group, function, *constants, uses_frost, version, move_labels)
        _registry.register(name, corruption, replace=replace)
        return function

    return add


def interpolate(small: Level, large: Level, size: int) -> Level:
    """Return the constants for a size from those at 32 and at 224 px.

    >>> interpolate((0.10,), (0.38,), 32), interpolate((0.10,), (0.38,), 224)
    ((0.1,), (0.38,))
    """
    weight = min(max(math.log(size / 32) / math.log(224 / 32), 0.0), 1.0)
    if weight in (0.0, 1.0):
        return large if weight else small
    return tuple(a + weight * (b - a) for a, b in zip(small, large, strict=True))


def round_down(x: Tensor) -> Tensor:
    """Round down to whole numbers, as the benchmark does; values that float32 has just below one are rounded up."""
    return (x + 2**-11).floor()


def _levels(constants: Sequence[Any]) -> tuple[Level, ...]:
    return tuple(tuple(c) if isinstance(c, tuple) else (c,) for c in constants)
