"""95 % confidence intervals: Wilson's for rates, the bootstrap over batches for error rates and differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import confusion

Z = 1.959963984540054
RESAMPLES = 2000
FEWEST = 5
"""The bootstrap of fewer batches than this says next to nothing about other batches: there is no interval then."""


class Interval(NamedTuple):
    """A value and the limits of its confidence interval, which are NaN where there is none."""

    value: float
    low: float
    high: float


def wilson(hits: int, count: int) -> Interval:
    """Return a rate with Wilson's score interval, which has a width even for 0 or all hits.

    >>> [round(x, 3) for x in wilson(0, 50)]
    [0.0, 0.0, 0.071]
    """
    if not 0 <= hits <= count or count == 0:
        raise ValueError(f"expected hits of at least one attempt, got {hits} of {count}.")
    rate = hits / count
    scale = 1 + Z**2 / count
    middle = (rate + Z**2 / (2 * count)) / scale
    half = Z / scale * math.sqrt(rate * (1 - rate) / count + Z**2 / (4 * count**2))
    return Interval(rate, 0.0 if hits == 0 else middle - half, 1.0 if hits == count else middle + half)


def bootstrap(wrong: Sequence[int], images: Sequence[int], streams: Sequence[Hashable] | None = None) -> Interval:
    """Return an error rate with the bootstrap over batches; images of one batch are not independent.

    Fewer than five batches have no interval.

    Args:
        wrong: wrong predictions of each batch.
        images: images of each batch.
        streams: the stream of each batch, such as its corruption. Batches are drawn within each stream if every stream
            has several; otherwise from all batches, and the interval then also covers how streams differ.
    """
    errors = np.asarray(wrong, dtype=float) / np.asarray(images, dtype=float)
    return _bootstrap_mean(errors, streams)


def paired_difference(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Return the mean of ``second − first`` over the same batches; fewer than five have no interval."""
    if len(first) != len(second) or not len(first):
        raise ValueError(f"expected the same batches on both sides, got {len(first)} and {len(second)}.")
    return _bootstrap_mean(np.asarray(second, dtype=float) - np.asarray(first, dtype=float))


def bootstrap_confusion(
    matrices: Sequence[Tensor], of: Callable[[Tensor], Tensor], streams: Sequence[Hashable] | None = None
) -> Interval:
    """Return a number of the sum of the batches' confusion matrices, with its bootstrap over batches.

    Args:
        matrices: the confusion matrix of each batch.
        of: the number, for matrices ``(..., classes, classes)``: ``mean_iou`` or ``pixel_accuracy`` of this module.
        streams: as in ``bootstrap``.
    """
    stacked = torch.stack(list(matrices)).double()
    value = of(stacked.sum(0)).item()
    if len(stacked) < FEWEST:
        return Interval(value, math.nan, math.nan)
    return _interval(value, of(_resampled_sums(stacked, streams)))


def paired_confusion(first: Sequence[Tensor], second: Sequence[Tensor], of: Callable[[Tensor], Tensor]) -> Interval:
    """Return ``of`` the sum of ``second`` minus that of ``first``, over the same batches; drawn together."""
    if len(first) != len(second) or not len(first):
        raise ValueError(f"expected the same batches on both sides, got {len(first)} and {len(second)}.")
    stacked = torch.stack([torch.stack(list(side)) for side in (first, second)], dim=1).double()

    def difference(sums: Tensor) -> Tensor:
        return of(sums[..., 1, :, :]) - of(sums[..., 0, :, :])

    value = difference(stacked.sum(0)).item()
    if len(stacked) < FEWEST:
        return Interval(value, math.nan, math.nan)
    return _interval(value, difference(_resampled_sums(stacked)))


def mean_iou(counts: Tensor) -> Tensor:
    """Return the mean IoU over the classes that occur in the labels of each matrix ``(..., classes, classes)``."""
    return confusion.iou_per_class(counts).nanmean(-1)


def pixel_accuracy(counts: Tensor) -> Tensor:
    """Return the share of correct pixels of each matrix ``(..., classes, classes)``."""
    return counts.diagonal(dim1=-2, dim2=-1).sum(-1) / counts.sum((-2, -1))


def _resampled_sums(values: Tensor, streams: Sequence[Hashable] | None = None) -> Tensor:
    """Return the sums over ``RESAMPLES`` draws of batches."""
    weights = torch.from_numpy(_draw_counts(len(values), streams))
    return (weights @ values.flatten(1)).view(RESAMPLES, *values.shape[1:])


def _draw_counts(batches: int, streams: Sequence[Hashable] | None) -> np.ndarray:
    """Return how often each batch is drawn in each resample, ``(RESAMPLES, batches)``."""
    rng = np.random.default_rng(0)
    drawn = np.zeros((RESAMPLES, batches))
    for group in _groups(batches, streams):
        chosen = group[rng.integers(0, len(group), (RESAMPLES, len(group)))]
        np.add.at(drawn, (np.arange(RESAMPLES)[:, None], chosen), 1.0)
    return drawn


def _groups(batches: int, streams: Sequence[Hashable] | None) -> list[np.ndarray]:
    """Return the indices of the batches of each stream; of all of them together if a stream has one batch only."""
    groups: dict[Hashable, list[int]] = {}
    for index, stream in zip(range(batches), streams or [None] * batches, strict=True):
        groups.setdefault(stream, []).append(index)
    if any(len(group) < 2 for group in groups.values()):
        groups = {None: list(range(batches))}
    return [np.asarray(group) for group in groups.values()]


def _interval(value: float, resamples: Tensor) -> Interval:
    low, high = np.nanpercentile(resamples.numpy(), [2.5, 97.5])
    return Interval(value, float(low), float(high))


def _bootstrap_mean(values: np.ndarray, streams: Sequence[Hashable] | None = None) -> Interval:
    if len(values) < FEWEST:
        return Interval(float(values.mean()), math.nan, math.nan)
    rng = np.random.default_rng(0)  # a fixed seed, so that the same report is made again
    totals = np.zeros(RESAMPLES)
    for group in _groups(len(values), streams):
        totals += values[group[rng.integers(0, len(group), (RESAMPLES, len(group)))]].sum(axis=1)
    low, high = np.percentile(totals / len(values), [2.5, 97.5])
    return Interval(float(values.mean()), float(low), float(high))
