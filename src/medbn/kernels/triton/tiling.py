"""How an activation is cut into tiles and divided among Triton programs: all that follows from its shape alone.

The constants were chosen by measuring on GPUs; ``medbn speed layer`` shows what they are worth. None changes which
median is selected; those that set the number of parts of a sum change its rounding.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

SMALL_CHANNEL, LESS_SMALL_CHANNEL = 4096, 16384
"""The largest padded channel that a program holds in registers: in general, and for at most two channels on each
multiprocessor."""
TILE, WARPS, WAVES = 2048, 4, 24
"""Values in a tile, warps in a program, and programs per multiprocessor, where an activation is read and written."""
SURVEY_TILE, SURVEY_WARPS, SURVEY_WAVES = 256, 1, 64
"""The same where a survey reads it: few values, so that what each lane counts stays in registers."""
REDUCE_WAVES_LAST = 8
"""Programs per multiprocessor that sum gradients, channels last."""
CHANNEL_TILE, CHANNEL_WARPS = 2048, 4
"""The tile of a program that reads a whole channel alone."""
NEIGHBOURS = 32
"""The most neighbouring channels in a tile, channels last."""
WHOLE_CHANNEL = 16384
"""The size up to which one program computes the gradient of a whole channel, reading it twice."""
COLLECTED_IN_REGISTERS = 16384
"""The most collected values that are searched in registers."""
SAMPLES = ((16_000, 1024), (100_000, 2048), (1_000_000, 4096))
"""Sample sizes: a channel of fewer than the first number of values gives a sample of the second. Larger ones: 8192."""
LARGEST_SAMPLE = 8192
BRACKET_SIGMAS = 4.0
"""Half the width of the bracket, in standard deviations of the median's rank in the sample."""
SPARE = 64
"""How many values more than expected a program collects before it looks for ties."""
PARTS_PER_PROGRAM = 64
"""The most parts of a sum that every program of the next kernel adds up for itself."""


class Shape(NamedTuple):
    """A dense activation, seen as ``(B, C, S)``, and the GPU that it is on."""

    images: int
    channels: int
    size: int
    last: bool
    """Whether channels are innermost in memory."""
    processors: int
    """Multiprocessors of the GPU."""

    @classmethod
    def of(cls, x: Tensor) -> Shape:
        """Return the shape of an activation ``(B, C, *)``."""
        images, channels = x.shape[:2]
        size = x.numel() // (images * channels)
        return cls(images, channels, size, size > 1 and channels > 1 and not x.is_contiguous(), processors_of(x.device))

    @property
    def values(self) -> int:
        """The number of values of a channel."""
        return self.images * self.size

    @property
    def vector(self) -> int:
        """How many neighbouring values can be loaded at once."""
        return next(v for v in (8, 4, 2, 1) if self.last or self.size % v == 0)

    @property
    def row(self) -> int:
        """The size of an image's plane, padded to a power of two."""
        return next_power_of_2(self.size)

    @property
    def padded(self) -> int:
        """The size of a channel in registers."""
        return next_power_of_2(self.images) * self.row

    @property
    def small(self) -> bool:
        """Whether a program holds a whole channel in registers."""
        few = self.channels <= 2 * self.processors and not self.last
        return self.padded <= SMALL_CHANNEL or (self.padded <= LESS_SMALL_CHANNEL and few)

    @property
    def whole(self) -> bool:
        """Whether a program computes the gradient of a whole channel."""
        return self.values <= WHOLE_CHANNEL and self.channels >= self.processors and not self.last

    def options(self) -> dict[str, Any]:
        """Return the compile-time constants that describe the memory."""
        return {"LAST": self.last, "VEC": 1 if self.last else self.vector}


class Plan(NamedTuple):
    """How a shape is cut into tiles, and its images (or ``split`` pieces of each) are divided among programs."""

    shape: Shape
    places: int
    """Places of a tile: rows times ``row``."""
    row: int
    """Places of a tile in one image."""
    channels: int
    """Channels of a tile."""
    blocks: int
    """Tiles that cover all channels."""
    parts: int
    """Programs that share a channel."""
    split: int
    """Pieces that each image is cut into."""
    warps: int

    @property
    def grid(self) -> tuple[int, int]:
        """The grid of programs."""
        return self.blocks, self.parts

    @property
    def sizes(self) -> tuple[int, int, int]:
        """B, C and S as kernels see them: where images are split, B counts pieces."""
        return self.shape.images * self.split, self.shape.channels, self.shape.size // self.split

    def options(self) -> dict[str, Any]:
        """Return the compile-time constants of a kernel that reads tiles."""
        far = self.shape.values * self.shape.channels >= 2**31
        tile = {"TILE": self.places, "ROW": self.row, "WIDTH": self.channels, "INT64": far, "SPLIT": self.split}
        return tile | self.shape.options() | {"num_warps": self.warps}


@lru_cache(4096)
def plan(shape: Shape, tile: int, warps: int, waves: float, single: bool = False) -> Plan:
    """Return tiles of about ``tile`` values, and parts enough for ``waves`` programs on each multiprocessor.

    Channels last, images are split where they are too few for that. ``single`` keeps every tile within one image.
    """
    channels = min(next_power_of_2(shape.channels), NEIGHBOURS) if shape.last else 1
    places = max(1, tile // channels)
    blocks = cdiv(shape.channels, channels)
    target = max(1, int(waves * shape.processors) // blocks)
    split = 1
    if shape.last:
        pieces = [d for d in range(2, shape.size // 16 + 1) if shape.size % d == 0 and shape.images * d <= 2 * target]
        split = next((d for d in [1, *pieces] if shape.images * d >= target), max([1, *pieces]))
    size, images = shape.size // split, shape.images * split
    row = min(next_power_of_2(size), places)
    rows = 1 if single else min(places // row, next_power_of_2(images))
    return Plan(shape, rows * row, row, channels, blocks, min(target, cdiv(images, rows)), split, warps)


class SurveyPlan(NamedTuple):
    """How the median of a shape's channels is bracketed, and how much a survey collects."""

    cut: Plan
    samples: int
    """Values of a channel in its sample."""
    ranks: tuple[int, int, int, int]
    """Ranks in the sample: from the first to the second for the lower cut, from the third to the fourth for the upper.
    """
    limit: int
    """Values that a program collects before it leaves out ties."""
    capacity: int
    """Values that can be collected of a channel."""
    room: int
    """Values that a lane can store."""


@lru_cache(4096)
def survey_plan(shape: Shape) -> SurveyPlan:
    """Return a bracket that the median very probably lies in, and room for what it very probably encloses."""
    values = shape.values
    cut = plan(shape, SURVEY_TILE, SURVEY_WARPS, SURVEY_WAVES)
    samples = next((m for upto, m in SAMPLES if values < upto), LARGEST_SAMPLE)
    middle = ((values - 1) // 2 + 0.5) * samples / values
    width = BRACKET_SIGMAS * samples**0.5 / 2
    slack = max(1, int(width / 8))  # any rank nearby will do, and is found in fewer rounds
    low, high = max(0, int(middle - width)), min(samples - 1, int(middle + width) + 1)
    ranks = max(0, low - slack), low, high, min(samples - 1, high + slack)
    fraction = (ranks[3] - ranks[0] + 1) / samples
    limit = int(1.5 * fraction * values / cut.parts) + SPARE
    rows, pieces = cdiv(cut.sizes[0], cut.parts), cdiv(cut.sizes[2], cut.row)
    turns = cdiv(rows, cut.places // cut.row) * pieces
    room = min(next_power_of_2(turns), next_power_of_2(int(2 * fraction * turns) + 4))
    return SurveyPlan(cut, samples, ranks, limit, min(values, cut.parts * limit), room)


@cache
def processors_of(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU; 4 for Triton's interpreter on a CPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def next_power_of_2(n: int) -> int:
    """Return the least power of two that is at least ``n`` > 0. Triton's own function is slow on the host."""
    return 1 << (n - 1).bit_length()


def cdiv(a: int, b: int) -> int:
    """Return ``a / b``, rounded up."""
    return -(-a // b)


def dense(x: Tensor) -> Tensor:
    """Return ``x`` itself if it is contiguous or channels last, else a contiguous copy."""
    forms = {4: torch.channels_last, 5: torch.channels_last_3d}
    fits = x.is_contiguous() or (x.dim() in forms and x.is_contiguous(memory_format=forms[x.dim()]))
    return x if fits else x.detach().contiguous()


def like(g: Tensor, x: Tensor) -> Tensor:
    """Return the gradient ``g`` in the memory format of ``x``."""
    return g if g.stride() == x.stride() else torch.empty_like(x, dtype=g.dtype).copy_(g)
