"""What a corruption is: a function, its published constants at two image sizes, and its own random stream per image."""

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

Floats = npt.NDArray[Any]
Level = tuple[float, ...]
"""The constants of one severity."""


@dataclass(frozen=True, eq=False)
class Draw:
    """Random numbers for one batch, each image from a stream of its own.

    An image's stream is seeded by the seed, the corruption, the severity and the image's number in its dataset. So the
    result for an image does not depend on the batch it comes in, nor (but for a last bit) on the device.
    """

    streams: Sequence[np.random.Generator]
    device: torch.device
    frost: str | Path | None = None

    @classmethod
    def of(
        cls, name: str, severity: int, seed: int, numbers: range, device: torch.device, frost: str | Path | None
    ) -> Draw:
        """The streams of the images with these numbers."""
        key = zlib.crc32(name.encode())
        return cls([np.random.default_rng([seed, key, severity, number]) for number in numbers], device, frost)

    def each(self, make: Callable[[np.random.Generator], Floats | float]) -> Tensor:
        """``make`` called with every image's stream, stacked, as float32."""
        values = np.stack([np.asarray(make(stream), dtype=np.float32) for stream in self.streams])
        return torch.from_numpy(values).to(self.device)


Corrupt = Callable[[Tensor, Level, Draw], Tensor]


@dataclass(frozen=True)
class Corruption:
    """A named corruption. ``apply`` takes and returns float32 images (N, C, H, W) in [0, 255]."""

    name: str
    group: str
    apply: Corrupt
    small: Sequence[Level] = field(repr=False)
    """Published constants for 32 px (CIFAR-10-C), severities 1 to 5."""
    large: Sequence[Level] = field(repr=False)
    """Published constants for 224 px (ImageNet-C)."""

    def level(self, severity: int, size: int) -> Level:
        """The constants for images whose shorter side is ``size``.

        Exactly the published ones up to 32 px and from 224 px on; between, linear in the logarithm of the size.
        """
        return interpolated(self.small[severity - 1], self.large[severity - 1], size)


REGISTRY: dict[str, Corruption] = {}


def corruption(group: str, small: Sequence[Any], large: Sequence[Any]) -> Callable[[Corrupt], Corrupt]:
    """Register a function under its own name, with its constants at 32 and at 224 px."""

    def add(function: Corrupt) -> Corrupt:
        name = function.__name__
        REGISTRY[name] = Corruption(name, group, function, _levels(small), _levels(large))
        return function

    return add


def interpolated(small: Level, large: Level, size: int) -> Level:
    """Constants between the two published sizes.

    >>> interpolated((0.10,), (0.38,), 32), interpolated((0.10,), (0.38,), 224)
    ((0.1,), (0.38,))
    """
    share = min(max(math.log(size / 32) / math.log(224 / 32), 0.0), 1.0)
    if share in (0.0, 1.0):
        return large if share else small
    return tuple(a + share * (b - a) for a, b in zip(small, large, strict=True))


def floored(x: Tensor) -> Tensor:
    """Rounded down to whole numbers, as the benchmark does; a value that float32 has just below one counts as it."""
    return (x + 2**-11).floor()


def _levels(constants: Sequence[Any]) -> tuple[Level, ...]:
    return tuple(tuple(c) if isinstance(c, tuple) else (c,) for c in constants)
