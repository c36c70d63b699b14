"""The reference kernels: exact, in plain torch, on any device.

Input is ``(B, C, *)`` and finite in every image that is used; ``valid`` is a ``(B,)`` mask of the images to use, or
None for all. Results are per channel, in float32 or wider. Everything is differentiable twice, and saves nothing larger
than its input for the backward pass: autograd over the plain formulas would save four activations where BatchNorm saves
one. No value is read on the host, so a GPU is never synchronised.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function

from .tracing import apply, needs_function, needs_gradient, traced

MAD_TO_SIGMA = 1.4826
"""1 / Φ⁻¹(3/4): the median absolute deviation (MAD) of a Gaussian, times this, is its standard deviation."""
MAD_FACTORS = {"mad": 1.0, "mad_scaled": MAD_TO_SIGMA**2}
"""For each estimator built on the MAD: its variance, divided by the squared MAD."""


def working_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype that statistics are computed in: float32 for anything narrower, else the input's own."""
    return torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype


def split_planes(x: Tensor) -> Tensor:
    """View ``(B, C, *)`` as ``(B, C, S)``, in either memory format."""
    return x.reshape(x.shape[0], x.shape[1], math.prod(x.shape[2:]))


def _rows(x: Tensor) -> Tensor:
    """Return ``(B, C, *)`` as ``(C, N)``: the values of each channel, in (b, h, w) order."""
    return x.transpose(0, 1).reshape(x.shape[1], -1)


def _mask(planes: Tensor, valid: Tensor | None) -> Tensor:
    return planes if valid is None else torch.where(valid.view(-1, 1, 1), planes, 0.0)


def _count(planes: Tensor, valid: Tensor | None) -> Tensor | int:
    """Return the number of values used of each channel; at least 1, so that it can be divided by."""
    size = planes.shape[2]
    return planes.shape[0] * size if valid is None else valid.sum().clamp(min=1) * size


# --- selection ------------------------------------------------------------------------------------------------------


def lower_median(x: Tensor, valid: Tensor | None = None) -> Tensor:
    """Return the order statistic at rank ⌊(n−1)/2⌋ of each channel.

    Its gradient goes to the first element that has this value.
    """
    rows = _rows(x.detach())
    values = _select(rows, x, valid)
    if needs_gradient(x):
        values = substitute(values, _pick(x, _first(rows, values, x, valid)))
    return values.to(working_dtype(x))


def median_absolute_deviation(x: Tensor, centre: Tensor, valid: Tensor | None = None) -> Tensor:
    """Return the lower median of ``|x − centre|`` of each channel; differentiable in ``x`` and ``centre``."""
    deviations = (_rows(x.detach()).to(centre.dtype) - centre.detach().unsqueeze(1)).abs()
    values = _select(deviations, x, valid)
    if needs_gradient(x, centre):
        selected = _pick(x, _first(deviations, values, x, valid)).to(centre.dtype)
        values = substitute(values, (selected - centre).abs())
    return values


def _select(rows: Tensor, x: Tensor, valid: Tensor | None) -> Tensor:
    """Return the lower median of each row, over the images of ``x`` that are used."""
    rows = _fill_unused(rows, x, valid)
    if rows.is_cuda and torch.are_deterministic_algorithms_enabled():
        # torch.median returns indices, which CUDA refuses to do deterministically. A sort has NaN last.
        ordered = rows.sort(dim=1).values
        values = torch.where(ordered[:, -1].isnan(), ordered[:, -1], ordered[:, (rows.shape[1] - 1) // 2])
    else:
        values = rows.median(dim=1).values
    return values + 0.0  # −0.0 becomes +0.0


def _fill_unused(rows: Tensor, x: Tensor, valid: Tensor | None) -> Tensor:
    """Replace values of unused images by −inf and +inf, in numbers that keep the median of the others at its rank."""
    if valid is None:
        return rows
    used = _expand_mask(x, valid)
    below = (used.numel() - 1) // 2 - (used.sum() - 1) // 2
    fill = torch.where((~used).cumsum(0) <= below, -torch.inf, torch.inf).to(rows.dtype)
    return torch.where(used, rows, fill)


def _expand_mask(x: Tensor, valid: Tensor) -> Tensor:
    """Return the mask over images as a mask over the N values of a row."""
    return valid.unsqueeze(1).expand(-1, x[0, 0].numel()).reshape(-1)


def _first(rows: Tensor, values: Tensor, x: Tensor, valid: Tensor | None) -> Tensor:
    """Return the first position of each row's value. argmax returns the first of equal maxima, on every device."""
    equal = rows == values.unsqueeze(1)
    if valid is not None:
        equal = equal & _expand_mask(x, valid)
    return equal.to(torch.uint8).argmax(dim=1)


def _pick(x: Tensor, index: Tensor) -> Tensor:
    """Return one element of each channel, by its position in (b, h, w) order."""
    planes = split_planes(x)
    channels = torch.arange(planes.shape[1], device=x.device)
    return planes[index // planes.shape[2], channels, index % planes.shape[2]]


# --- moments --------------------------------------------------------------------------------------------------------


def square_deviation(x: Tensor, centre: Tensor, valid: Tensor | None = None) -> Tensor:
    """Return the mean of ``(x − centre)²`` of each channel; differentiable in both."""
    if needs_function(x, centre):
        return cast(Tensor, apply(_SquareDeviation, x, centre, valid))
    return _SquareDeviation.forward(None, x, centre, valid)


class _SquareDeviation(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, centre: Tensor, valid: Tensor | None) -> Tensor:
        if ctx is not None:
            ctx.save_for_backward(x, centre, valid)
        deviation = _SquareDeviation.deviation(x, centre, valid)
        return deviation.square().sum(dim=(0, 2)) / _count(deviation, valid)

    @staticmethod
    def deviation(x: Tensor, centre: Tensor, valid: Tensor | None) -> Tensor:
        return _mask(split_planes(x).to(centre.dtype) - centre.unsqueeze(1), valid)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, centre, valid = ctx.saved_tensors
        deviation = _SquareDeviation.deviation(x, centre, valid)
        slope = 2.0 * grads[0] / _count(deviation, valid)
        d_x = multiply_gradient(slope.unsqueeze(1), deviation).to(x.dtype).view(x.shape)
        return d_x, -slope * deviation.sum(dim=(0, 2)), None


def multiply_gradient(gradient: Tensor, value: Tensor) -> Tensor:
    """Return the product, and 0 where the gradient is 0: deviations of huge values may be infinite."""
    return torch.where(gradient == 0, 0.0, gradient * value)


# --- normalisation --------------------------------------------------------------------------------------------------


def normalise(
    x: Tensor, centre: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Return ``weight · (x − centre) / √(variance + eps) + bias``, differentiable in all five tensors."""
    weight = weight if weight is None else weight.to(centre.dtype)
    bias = bias if bias is None else bias.to(centre.dtype)
    if needs_function(x, centre, variance, weight, bias) and len(x):
        return cast(Tensor, apply(_Normalise, x, centre, variance, weight, bias, eps))
    if traced() or not len(x):  # torch's kernels divide by the size of the batch
        scale = torch.rsqrt(variance + eps) if weight is None else torch.rsqrt(variance + eps) * weight
        y = (x.to(centre.dtype) - view_per_channel(centre, x)) * view_per_channel(scale, x)
        return (y if bias is None else y + view_per_channel(bias, x)).to(x.dtype)
    return _Normalise.forward(None, x, centre, variance, weight, bias, eps)


def view_per_channel(values: Tensor, x: Tensor) -> Tensor:
    """Return per-channel values in a shape that broadcasts against ``x``."""
    return values.view(-1, *[1] * (x.dim() - 2))


class _Normalise(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        centre: Tensor,
        variance: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
    ) -> Tensor:
        if ctx is not None:
            ctx.save_for_backward(x, centre, variance, weight)
            ctx.eps = eps
        # torch's own kernel with given statistics: one pass, in the input's memory format.
        return torch.batch_norm(x, weight, bias, centre, variance, False, 0.0, eps, torch.backends.cudnn.enabled)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (g,) = grads
        x, centre, variance, weight = ctx.saved_tensors
        inverse_std = torch.rsqrt(variance + ctx.eps)
        scale = inverse_std if weight is None else weight * inverse_std
        if torch.is_grad_enabled():  # create_graph=True: compute in operations that autograd can differentiate again
            d_y = split_planes(g).to(centre.dtype)
            standard = (split_planes(x).to(centre.dtype) - centre.unsqueeze(1)) * inverse_std.unsqueeze(1)
            d_x = (d_y * scale.unsqueeze(1)).to(x.dtype).view(x.shape)
            d_weight, d_bias = (d_y * standard).sum(dim=(0, 2)), d_y.sum(dim=(0, 2))
        else:
            # torch's CUDA kernels require a weight and, in channels_last, saved statistics.
            ones = torch.ones_like(centre) if weight is None else weight
            d_x, d_weight, d_bias = torch.ops.aten.native_batch_norm_backward(
                g, x, ones, centre, variance, centre, inverse_std, False, ctx.eps, [ctx.needs_input_grad[0], True, True]
            )
        d_centre, d_variance = -scale * d_bias, -0.5 * scale * inverse_std * d_weight
        needs = ctx.needs_input_grad
        return d_x, d_centre, d_variance, d_weight if needs[3] else None, d_bias if needs[4] else None, None


def differentiate_affine(
    sum_g: Tensor, d_weight: Tensor, inverse_std: Tensor, weight: Tensor | None, batch_weight: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the slope of the affine map, and the gradients of the batch's centre and variance.

    Args:
        sum_g: ``(C,)``, the sums of the gradient of the output.
        d_weight: ``(C,)``, the gradient of the weight.
        inverse_std: 1/√(variance + eps) that the input was normalised with.
        weight: the affine map's factor, or None.
        batch_weight: the weight of the batch in the statistics that were used.
    """
    scale = inverse_std if weight is None else weight.to(inverse_std.dtype) * inverse_std
    return scale, -batch_weight * scale * sum_g, -0.5 * batch_weight * scale * inverse_std * d_weight


# --- mixing with running statistics ---------------------------------------------------------------------------------


def mix(
    batch: tuple[Tensor, Tensor],
    running: tuple[Tensor, Tensor] | None,
    batch_weight: float,
    counted: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the centre and the variance to normalise with: ``batch_weight · batch + (1 − batch_weight) · running``.

    Args:
        batch: centre and variance of the batch, ``(C,)`` each.
        running: centre and variance to mix with; None for the batch's alone.
        batch_weight: the weight of the batch's statistics.
        counted: the number of images that ``batch`` was estimated from, a scalar tensor; where it is 0, the running
            statistics are used alone. None if it cannot be 0.
    """
    if running is None or (batch_weight == 1.0 and counted is None):
        return batch
    old_centre, old_variance = (s.to(batch[0].dtype) for s in running)
    if batch_weight == 0.0:  # not a sum: 0 times an infinite statistic is NaN
        return old_centre, old_variance
    centre, variance = batch
    if batch_weight != 1.0:
        centre = batch_weight * centre + (1.0 - batch_weight) * old_centre
        variance = batch_weight * variance + (1.0 - batch_weight) * old_variance
    if counted is None:
        return centre, variance
    empty = counted == 0
    return torch.where(empty, old_centre, centre), torch.where(empty, old_variance, variance)


# --- one value forward, another backward ----------------------------------------------------------------------------


def substitute(value: Tensor, gradient: Tensor) -> Tensor:
    """Return ``value``, to the bit, with the gradient of ``gradient``; no gradient flows where that is not finite."""
    # A zero that has a gradient. A Function whose output ignores its input would be traced as a constant.
    zero = torch.where(gradient.isfinite(), gradient - gradient.detach(), 0.0)
    return value.detach() + zero
