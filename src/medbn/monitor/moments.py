"""What the monitor measures of the watched layers: each image's own mean in every channel.

A GPU spends more time on starting many small kernels than on what they compute. So a layer is reduced by one kernel
while the model runs, and everything else is done once, for the channels of all watched layers side by side.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from .. import kernels
from ..layers import RobustBatchNorm

SPREAD = 1e-6
"""The least spread between images, so that a constant channel does not divide by zero."""
SMALL = 1e-12
"""Added where a logarithm would not be finite."""


class Reduced(NamedTuple):
    """The input of a layer, reduced to numbers of single images."""

    layer: RobustBatchNorm
    mean: Tensor
    """``(B, C)``, float32 or wider."""
    log_variance: Tensor | None
    """``(B, C)``; of the first layer alone, and None where a channel has one value per image."""


def reduce_layer(layer: RobustBatchNorm, x: Tensor, with_variance: bool) -> Reduced:
    """Reduce the input of a layer, ``(B, C, *)``, to the mean of each image, and to its variance if asked for."""
    dtype, inner = kernels.working_dtype(x), list(range(2, x.dim()))
    count = x[0, 0].numel()
    if count == 1:
        return Reduced(layer, x.flatten(1).to(dtype, copy=True), None)  # the model may write to x later
    mean = x.mean(dim=inner, dtype=dtype)
    if not with_variance:
        return Reduced(layer, mean, None)
    # torch.var_mean takes forty times as long on a CPU
    norm = torch.linalg.vector_norm(x, dim=inner, dtype=dtype)
    negative_variance = torch.addcmul(mean * mean, norm, norm, value=-1 / count)
    return Reduced(layer, mean, (SMALL - negative_variance.clamp(max=0)).log())


class Source(NamedTuple):
    """The statistics on source images of all channels of some layers, side by side."""

    mean: Tensor
    """``(S,)``"""
    deviation: Tensor
    """``(S,)``: standard deviations."""


class SourceCache:
    """Keeps the source statistics of one set of layers, which change where a state is loaded alone."""

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []
        self._versions: list[int] = []
        self._source: Source | None = None

    def get(self, layers: Iterable[RobustBatchNorm]) -> Source | None:
        """Return the source statistics of layers; None if one of them has none."""
        layers = list(layers)
        buffers = [buffer for layer in layers for buffer in (layer.running_mean, layer.running_var)]
        known = [buffer for buffer in buffers if buffer is not None]
        if len(known) < len(buffers) or not known:
            return None
        tracked = not any(buffer.is_inference() for buffer in known)  # those count no changes
        versions = [buffer._version for buffer in known] if tracked else []
        kept = self._source
        if kept is not None and tracked and versions == self._versions and _same(known, self._buffers):
            return kept
        variances = torch._foreach_add(known[1::2], [layer.eps for layer in layers])
        self._source = Source(torch.cat(known[::2]), torch.cat(variances).sqrt())
        self._buffers, self._versions = known, versions
        return self._source


def _same(some: list[Tensor], others: list[Tensor]) -> bool:
    """Return whether two lists are of the same objects."""
    return len(some) == len(others) and all(a is b for a, b in zip(some, others, strict=True))


@dataclass(eq=False)
class Moments:
    """Each image's own mean in every channel of some layers, and its log variance in the first of them."""

    layers: dict[str, RobustBatchNorm]
    """By name; the columns of ``mean`` are their channels, in this order."""
    features: Tensor
    """``(B, F)``: the log variances of the first layer, if there are any, and then the means of all layers; zero for
    images that are not usable."""
    usable: Tensor
    """``(B,)`` mask of the images that are finite in all of the layers and not padding."""
    unusable: Tensor
    """``(B, 1)``: the other images."""
    variances: int
    """How many columns of ``features`` are log variances."""
    cache: SourceCache = field(default_factory=SourceCache, repr=False)

    @classmethod
    def of(
        cls,
        reduced: dict[str, Reduced],
        valid: Tensor | None,
        caches: dict[tuple[str, ...], SourceCache] | None = None,
    ) -> tuple[Moments, ...]:
        """Lay reduced layers side by side; apart from each other those that have another number of images.

        Args:
            reduced: by name; the first layer comes first.
            valid: ``(B,)`` mask of the images that are not padding, or None.
            caches: of source statistics, by the names of layers; kept by the caller from batch to batch.
        """
        groups: dict[object, dict[str, Reduced]] = {}
        for name, one in reduced.items():
            groups.setdefault((len(one.mean), one.mean.device, one.mean.dtype), {})[name] = one
        caches = {} if caches is None else caches
        return tuple(
            cls._side_by_side(group, valid, caches.setdefault(tuple(group), SourceCache())) for group in groups.values()
        )

    @classmethod
    def _side_by_side(cls, group: dict[str, Reduced], valid: Tensor | None, cache: SourceCache) -> Moments:
        log_variance = next(iter(group.values())).log_variance
        parts = [] if log_variance is None else [log_variance]
        features = torch.cat([*parts, *(one.mean for one in group.values())], dim=1)
        usable = torch.linalg.vector_norm(features.detach(), torch.inf, dim=1) < torch.inf
        if valid is not None and len(valid) == len(usable):
            usable = usable & valid.to(usable.device)
        unusable = ~usable.unsqueeze(1)
        features = features.masked_fill_(unusable, 0.0)
        layers = {name: one.layer for name, one in group.items()}
        return cls(layers, features, usable, unusable, 0 if log_variance is None else log_variance.shape[1], cache)

    @cached_property
    def count(self) -> Tensor:
        """The number of usable images, at least 1."""
        return self.usable.sum().clamp(min=1)

    @cached_property
    def _middle(self) -> Tensor:
        """The places of the two middle images, in the order of their values."""
        return (self.count + _offsets(self.usable.device)) // 2

    def median(self, values: Tensor) -> Tensor:
        """Return the median over usable images of finite ``(B, N)``: the mean of both middle values, if they are even.

        The same as ``kernels.middle_over_images``, by fewer kernels.
        """
        ordered = values.masked_fill(self.unusable, torch.inf).sort(dim=0, stable=True).values
        return ordered.index_select(0, self._middle).mean(dim=0)

    @cached_property
    def centres(self) -> Tensor:
        """``(F,)``: the median over images of every feature, which less than half of them cannot move far."""
        return self.median(self.features)

    @property
    def mean(self) -> Tensor:
        """``(B, S)``: each image's mean in the S channels of all layers."""
        return self.features[:, self.variances :]

    @property
    def centre(self) -> Tensor:
        """``(S,)``: the median over images of their means."""
        return self.centres[self.variances :]

    @cached_property
    def source(self) -> Source | None:
        """The source statistics of all layers; None if one of them has none."""
        return self.cache.get(self.layers.values())

    @cached_property
    def scale(self) -> Tensor:
        """``(S,)``: each channel's standard deviation on source images; between images where that is not known."""
        if self.source is not None:
            return self.source.deviation
        spread = self.spread((self.mean - self.centre).abs())
        parts = zip(self.layers.values(), self.split(spread).values(), strict=True)
        return torch.cat(
            [part if (var := layer.running_var) is None else (var + layer.eps).sqrt() for layer, part in parts]
        )

    def spread(self, deviations: Tensor) -> Tensor:
        """Return 1.4826 · the median over images of absolute deviations, of each column of ``(B, N)``."""
        return (kernels.MAD_TO_SIGMA * self.median(deviations)).clamp(min=SPREAD)

    def split(self, values: Tensor) -> dict[str, Tensor]:
        """Return the part of each layer in ``(S,)``, or in ``(..., S)``, by name."""
        sizes = [layer.num_features for layer in self.layers.values()]
        return dict(zip(self.layers, torch.split(values, sizes, dim=-1), strict=True))

    @cached_property
    def distances(self) -> Tensor:
        """``(B,)``: how far each image's features in the first layer are from the medians over images.

        Each feature's distance is counted in robust standard deviations; the result is their average.
        """
        first = next(iter(self.layers.values()))
        part = slice(0, self.variances + first.num_features)
        deviations = (self.features[:, part] - self.centres[part]).abs()
        return (deviations / self.spread(deviations)).mean(dim=1)


@lru_cache
def _offsets(device: torch.device) -> Tensor:
    """Return −1 and 0."""
    with torch.inference_mode(False):
        return torch.arange(-1, 1, device=device)


def root_mean_square(parts: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the root of the mean square of each tensor."""
    norms = torch._foreach_norm(list(parts.values()))
    return dict(zip(parts, torch._foreach_div(norms, [part.numel() ** 0.5 for part in parts.values()]), strict=True))
