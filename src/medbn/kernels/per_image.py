"""The reference kernels of single images: which are finite, each one's own moments, and medians over images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function

from .reference import MAD_TO_SIGMA, multiply_gradient, split_planes, working_dtype
from .tracing import apply, needs_function


def view_per_image(values: Tensor, x: Tensor) -> Tensor:
    """Return per-image values in a shape that broadcasts against ``x``."""
    return values.view(-1, *[1] * (x.dim() - 1))


def finite_images(x: Tensor) -> Tensor:
    """Return the ``(B,)`` mask of the images whose values are all finite."""
    axes = list(range(1, x.dim()))
    return x.amax(axes).isfinite() & x.amin(axes).isfinite()


def middle_over_images(values: Tensor, valid: Tensor | None = None) -> Tensor:
    """Return the median of ``(B, C)`` over images: the mean of the two middle values when their number is even."""
    images = values.shape[0]
    if valid is None:
        ordered = values.sort(dim=0, stable=True).values
        middle = 0.5 * ordered[(images - 1) // 2] + 0.5 * ordered[images // 2]
    else:
        used = valid.unsqueeze(1)
        ordered = values.masked_fill(~used, torch.inf).sort(dim=0, stable=True).values
        count = valid.sum().clamp(min=1)
        middle = 0.5 * ordered.index_select(0, ((count - 1) // 2).view(1)).squeeze(0)
        middle = middle + 0.5 * ordered.index_select(0, (count // 2).view(1)).squeeze(0)
        values = values.masked_fill(~used, 0)
    return torch.where(values.isnan().any(dim=0), torch.nan, middle)


def image_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return each image's own mean and biased variance in each channel, both ``(B, C)``."""
    if needs_function(x):
        return cast(tuple[Tensor, Tensor], apply(_ImageMoments, x))
    return _ImageMoments.forward(None, x)


def medians_over_images(x: Tensor, median: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Return the centre and the variance that ``image_median`` takes from each image's own moments.

    Args:
        x: ``(B, C, *)``.
        median: returns the median of ``(B, C)`` over images.
    """
    return medians_of_moments(*image_moments(x), median)


def medians_of_moments(means: Tensor, within: Tensor, median: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Return what ``medians_over_images`` does, from each image's own mean and variance, ``(B, C)``."""
    within = within.masked_fill(means.isinf(), torch.inf)  # not NaN, which would spread from one image to the median
    centre = median(means)
    between = MAD_TO_SIGMA * median((means - centre).abs())
    return centre, median(within) + between.square()


class _ImageMoments(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        planes = split_planes(x).to(working_dtype(x))
        mean = planes.mean(dim=2)
        variance = (planes - mean.unsqueeze(2)).square().mean(dim=2)
        if ctx is not None:
            ctx.save_for_backward(x)
        return mean, variance

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (x,) = ctx.saved_tensors
        d_mean, d_variance = grads
        planes = split_planes(x).to(d_mean.dtype)
        size = planes.shape[2]
        deviation = planes - planes.mean(dim=2, keepdim=True)
        d_x = (d_mean.unsqueeze(2) + 2.0 * multiply_gradient(d_variance.unsqueeze(2), deviation)) / size
        return d_x.to(x.dtype).view(x.shape)
