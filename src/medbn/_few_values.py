"""Batches with too few values per channel to estimate statistics from, such as one image before a BatchNorm1d."""

from __future__ import annotations

import math
import warnings
from functools import cache

import torch
from torch import Tensor

MINIMUM_VALUES = 3
"""Fewer values per channel are no estimate of statistics: a median absolute deviation of two values is 0."""


def has_many_values(x: Tensor) -> bool:
    """Return whether every single image has enough values per channel, so that no mask can leave too few."""
    return x.numel() > MINIMUM_VALUES * x.shape[0] * x.shape[1]


def mark_few_values(
    x: Tensor, counted: Tensor | None, variance: Tensor, eps: float, running: tuple[Tensor, Tensor] | None
) -> Tensor | None:
    """Return the mask of the channels to normalise with running statistics, on the device; None if there are none.

    These are channels of fewer than three values; and of three values whose variance is below ``eps``, which then alone
    would decide the scale, as where two of them are equal and the estimator is a MAD. Without running statistics, only
    what a mask leaves of a channel is marked, if it is one value.
    """
    per_image = math.prod(x.shape[2:])
    known = counted is None
    if has_many_values(x) or (known and (running is None or x.shape[0] * per_image > MINIMUM_VALUES)):
        return None
    values = per_image * (torch.full_like(variance, x.shape[0]) if counted is None else counted)
    if running is None:
        return (values < 2).expand(variance.shape)
    return (values < MINIMUM_VALUES) | ((values == MINIMUM_VALUES) & (variance < eps))


def drop_statistics(statistics: tuple[Tensor, Tensor], few: Tensor) -> tuple[Tensor, Tensor]:
    """Return statistics that are NaN, and so enter no average, in the channels of a mask."""
    centre, variance = (s.masked_fill(few, torch.nan) for s in statistics)
    return centre, variance


def count_without(counted: Tensor | None, few: Tensor) -> Tensor | None:
    """Return the number of images, or 0 if no channel has enough values."""
    return None if counted is None else counted.masked_fill(few.all(), 0)


def replace_statistics(
    used: tuple[Tensor, Tensor], running: tuple[Tensor, Tensor] | None, few: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the statistics to normalise with, which are the running ones, or NaN, in the channels of a mask."""
    if running is None:
        return drop_statistics(used, few)
    centre, variance = (torch.where(few, r.to(u.dtype), u) for u, r in zip(used, running, strict=True))
    return centre, variance


@cache
def warn_of_few_values() -> None:
    """Warn once in this process."""
    warnings.warn(
        "a batch has fewer than three values per channel, such as one image before a BatchNorm1d; that is no estimate"
        " of statistics, so these layers use their running statistics. Pass more images at a time.",
        stacklevel=2,
    )
