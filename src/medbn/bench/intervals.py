"""95 % confidence intervals: Wilson's for rates, the bootstrap over batches for error rates and differences."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

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


def _bootstrap_mean(values: np.ndarray, streams: Sequence[Hashable] | None = None) -> Interval:
    if len(values) < FEWEST:
        return Interval(float(values.mean()), math.nan, math.nan)
    rng = np.random.default_rng(0)  # a fixed seed, so that the same report is made again
    groups: dict[Hashable, list[float]] = {}
    for value, stream in zip(values, streams or [None] * len(values), strict=True):
        groups.setdefault(stream, []).append(value)
    if any(len(group) < 2 for group in groups.values()):
        groups = {None: list(values)}
    totals = np.zeros(RESAMPLES)
    for group in map(np.asarray, groups.values()):
        totals += group[rng.integers(0, len(group), (RESAMPLES, len(group)))].sum(axis=1)
    low, high = np.percentile(totals / len(values), [2.5, 97.5])
    return Interval(float(values.mean()), float(low), float(high))
