"""Estimators in plain operators, which ONNX has too: sort and gather in the place of medians and kernels.

They return what the estimators of the same names do, on any device, with gradients, and are slower: a layer sorts whole
channels, and saves what autograd saves. ``medbn.convert(model, exportable=True)`` uses them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from . import estimators, kernels
from .estimators import Estimator

MARK = " (exportable)"
"""Ends the ``about`` of these estimators."""


def get(estimator: str | Estimator) -> Estimator:
    """Return the form of an estimator in plain operators; one without a kernel is returned as it is.

    >>> get("median@0.5").kernel is None
    True
    """
    found = estimators.get(estimator)
    if found.kernel is None or found.kernel == "mean":  # torch's own BatchNorm, and a user's function
        return found
    return dataclasses.replace(found, function=_FUNCTIONS[found.kernel], kernel=None, about=found.about + MARK)


def middle(values: Tensor, used: Tensor | None, *, upper: bool = False) -> Tensor:
    """Return the lower or the upper median of each row of ``(R, N)``; NaN where a used value is NaN.

    Args:
        values: the rows.
        used: ``(N,)`` mask of the columns to use; None for all.
        upper: the order statistic at rank ⌊n/2⌋, and not at ⌊(n − 1)/2⌋.
    """
    if used is not None:
        values = torch.where(used.unsqueeze(0), values, torch.inf)
    nan = values.isnan()
    ordered = torch.sort(torch.where(nan, torch.inf, values), dim=1).values
    count = torch.ones_like(values[0], dtype=torch.int64).sum() if used is None else used.sum()
    rank = count // 2 if upper else (count - 1) // 2
    selected = ordered.gather(1, rank.clamp(min=0).view(1, 1).expand(len(ordered), 1)).squeeze(1)
    return torch.where(nan.any(dim=1), torch.nan, selected)


def _median(x: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    rows, used = _rows(x, valid)
    centre = middle(rows, used)
    return centre, _mean_square(rows - centre.unsqueeze(1), used)


def _median_and_mad(x: Tensor, valid: Tensor | None = None, *, factor: float) -> tuple[Tensor, Tensor]:
    rows, used = _rows(x, valid)
    centre = middle(rows, used)
    return centre, factor * middle((rows - centre.unsqueeze(1)).abs(), used).square()


def _image_median(x: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    planes = x.to(kernels.working_dtype(x)).flatten(2) if x.dim() > 2 else x.to(kernels.working_dtype(x)).unsqueeze(2)
    means = planes.mean(dim=2)
    within = (planes - means.unsqueeze(2)).square().mean(dim=2)

    def over_images(values: Tensor) -> Tensor:
        rows = values.transpose(0, 1)
        return 0.5 * middle(rows, valid) + 0.5 * middle(rows, valid, upper=True)

    centre = over_images(means)
    between = kernels.MAD_TO_SIGMA * over_images((means - centre).abs())
    return centre, over_images(within) + between.square()


def _rows(x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return the values of each channel, ``(C, N)``, and the mask of the columns that are used."""
    rows = x.to(kernels.working_dtype(x)).transpose(0, 1).flatten(1)
    if valid is None:
        return rows, None
    size = math.prod(x.shape[2:])
    return rows, valid.unsqueeze(1).expand(-1, size).flatten()


def _mean_square(deviations: Tensor, used: Tensor | None) -> Tensor:
    if used is None:
        return deviations.square().mean(dim=1)
    squares = torch.where(used.unsqueeze(0), deviations.square(), 0.0)
    return squares.sum(dim=1) / used.sum().clamp(min=1)


_FUNCTIONS: dict[str, Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]] = {
    "median": _median,
    "image_median": _image_median,
    **{name: partial(_median_and_mad, factor=factor) for name, factor in kernels.MAD_FACTORS.items()},
}
