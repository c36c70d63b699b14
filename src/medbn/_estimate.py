"""Estimate the statistics of a batch: isolate images that are not finite, leave padding out, call the estimator."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import distributed, kernels
from ._isolate import check_activation, check_input, check_valid, isolate, isolates
from .distributed import Group
from .estimators import Estimator


class Batch(NamedTuple):
    """A batch whose non-finite images are isolated, and its statistics."""

    x: Tensor
    """The input; isolated images are zero."""
    centre: Tensor
    variance: Tensor
    finite: Tensor | None
    """``(B,)`` mask of the images that are not isolated; None when none is."""
    counted: Tensor | None
    """The number of images that the statistics were estimated from; None for all of them."""


def estimate_batch(
    x: Tensor,
    estimator: Estimator,
    valid: Tensor | None = None,
    nonfinite: str | None = None,
    backward: Estimator | None = None,
    group: Group | None = None,
) -> Batch:
    """Isolate, then estimate. With ``backward``, the statistics have the gradient of that estimator's."""
    if group is None:
        check_input(x)
    else:
        check_activation(x)  # another process may have all images
    valid = check_valid(valid, x)
    finite = None
    if isolates(estimator, nonfinite):
        x, finite = isolate(x)
        if finite is not None:
            valid = finite if valid is None else valid & finite
    elif valid is not None:
        x, finite = isolate(x, never=valid)  # padding may contain anything
    if group is not None:
        return _estimate_over_group(x, estimator, valid, finite, backward, group)
    if backward is None:
        centre, variance = estimator(x, valid)
    else:
        with torch.no_grad():
            values = None if estimator.kernel is None else kernels.statistics(x, estimator.kernel, valid)
            values = estimator(x, valid) if values is None else values
        centre, variance = (kernels.substitute(v, g) for v, g in zip(values, backward(x, valid), strict=True))
    counted = None
    if valid is not None:
        counted = valid.sum()
        centre, variance = (s.masked_fill(counted == 0, torch.nan) for s in (centre, variance))
    return Batch(x, centre, variance, finite, counted)


def _estimate_over_group(
    x: Tensor,
    estimator: Estimator,
    valid: Tensor | None,
    finite: Tensor | None,
    backward: Estimator | None,
    group: Group,
) -> Batch:
    """Estimate from the images of all processes."""
    if backward is None:
        centre, variance, counted = distributed.statistics(x, estimator, valid, group)
    else:
        with torch.no_grad():
            *values, counted = distributed.statistics(x, estimator, valid, group)
        gradients = distributed.statistics(x, backward, valid, group)
        centre, variance = (kernels.substitute(v, g) for v, g in zip(values, gradients[:2], strict=True))
    centre, variance = (s.masked_fill(counted == 0, torch.nan) for s in (centre, variance))
    return Batch(x, centre, variance, finite, counted)
