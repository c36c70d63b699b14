"""Soft medians: medians whose gradient goes to all values near them, with Gaussian weights.

The value is the true median. Its gradient in each value is e / Σe with e = exp(−½ · ((x − median) / scale)²) and
scale = temperature · σ; median and scale are treated as constants.

``median`` computes that in plain torch. ``backward`` is the backward pass of a layer whose forward pass ran in a
kernel: the kernel's backward pass computes the part of the affine map, and a few in-place passes over the activation
add the part of the statistics. Here ``g`` is the gradient of the output, and ``d_…`` that of anything else.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import c, triton
from .per_image import view_per_image
from .reference import (
    MAD_FACTORS,
    MAD_TO_SIGMA,
    differentiate_affine,
    multiply_gradient,
    substitute,
    view_per_channel,
)
from .saved import Saved, Spec

_SQRT_HALF = 0.5**0.5
_NO_ELEMENT = 2**31 - 1
"""A position behind the end of any channel."""


def median(x: Tensor, middle: Tensor, sigma: Tensor, valid: Tensor | None, temperature: float) -> Tensor:
    """Return ``middle``, the median of each channel, with the gradient of a weighted mean of the values near it.

    Args:
        x: ``(B, C, *)``.
        middle: ``(C,)``, the medians.
        sigma: ``(C,)``, the standard deviation or MAD that ``temperature`` multiplies.
        valid: ``(B,)`` mask of the images to use; None for all.
        temperature: the width of the Gaussian, in units of ``sigma``.
    """
    x = x.to(middle.dtype)
    axes, tiny = _axes(x), torch.finfo(x.dtype).tiny
    with torch.no_grad():
        scale = temperature * sigma + tiny
        exponent = -0.5 * ((x - view_per_channel(middle, x)) / view_per_channel(scale, x)).square()
        used = ~exponent.isnan() if valid is None else ~exponent.isnan() & view_per_image(valid, x)
        exponent = torch.where(used, exponent, -torch.inf)
        # A median that is the mean of two values may be far from both: shift, so that the nearest value has weight 1.
        weights = torch.exp(exponent - exponent.amax(dim=axes, keepdim=True))
        weights = torch.where(used & ~weights.isnan(), weights, 0.0)
        weights = weights / weights.sum(dim=axes, keepdim=True).clamp(min=tiny)
    return substitute(middle, torch.where(weights > 0, weights * x, 0.0).sum(dim=axes))


def backward(g: Tensor, x: Tensor, weight: Tensor | None, saved: Saved, spec: Spec) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of input, weight and bias; the last two in float32."""
    return (gpu_backward if x.is_cuda else cpu_backward)(g, x, weight, saved, spec)


def cpu_backward(
    g: Tensor, x: Tensor, weight: Tensor | None, saved: Saved, spec: Spec
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients on a CPU.

    The C pass that writes the input's gradient also adds a slope times (x − centre) and a shift per channel or image.
    """
    if saved.finite is not None:
        return c.isolate_nonfinite(cpu_backward, g, x, weight, saved, spec)
    sum_g, sum_gx = c.reduce(g, x, saved.used_centre)
    inverse_std = saved.inverse_std.double()
    d_weight = inverse_std * sum_gx
    scale, d_centre, d_variance = differentiate_affine(sum_g, d_weight, inverse_std, weight, spec.batch_weight)
    if spec.kernel == "image_median":
        slope, shift = _differentiate_images(d_centre.float(), d_variance.float(), saved, spec, _plane_size(x), None)
        dx = c.combine(g, x, saved.centre, scale.float(), slope, shift)
    else:
        slope, d_centre = _differentiate_deviation(d_centre, d_variance, saved, x.numel() // x.shape[1])
        dx = c.combine(g, x, saved.centre, scale.float(), slope.float(), torch.zeros_like(saved.centre))
        _add_median(dx, x, d_centre.float(), saved, spec)
    return dx, d_weight.float(), sum_g.float()


def gpu_backward(
    g: Tensor, x: Tensor, weight: Tensor | None, saved: Saved, spec: Spec
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients on a GPU, where images that are not finite are always masked, to avoid synchronisation."""
    assert saved.finite_count is not None
    if spec.kernel == "median":  # everything but what the kernel would add at the median's own element
        elsewhere = saved.replace(selected=torch.full_like(saved.selected, _NO_ELEMENT))
        dx, d_weight, sum_g = triton.backward(g, x, weight, elsewhere, spec)
    else:  # with batch weight 0: the affine map's part alone
        dx, d_weight, sum_g = triton.backward(g, x, weight, saved, spec._replace(batch_weight=0.0))
    _, d_centre, d_variance = differentiate_affine(sum_g, d_weight, saved.inverse_std, weight, spec.batch_weight)
    if spec.kernel == "median":
        count = (saved.finite_count * _plane_size(x)).clamp(min=1)
        _, d_centre = _differentiate_deviation(d_centre, d_variance, saved, count)
        _add_median(dx, x, d_centre, saved, spec)
    elif spec.kernel == "image_median":
        _add_images(dx, x, d_centre, d_variance, saved, spec)
    else:
        _add_mad(dx, x, d_centre, d_variance, saved, spec)
    return dx, d_weight, sum_g


def _differentiate_deviation(
    d_centre: Tensor, d_variance: Tensor, saved: Saved, count: Tensor | int
) -> tuple[Tensor, Tensor]:
    """Return the slope of a mean squared deviation in x − centre, and the whole gradient of the centre."""
    slope = 2.0 * d_variance / count
    return slope, d_centre - multiply_gradient(slope, saved.deviation_sum.to(slope.dtype))


def _add_median(dx: Tensor, x: Tensor, d_centre: Tensor, saved: Saved, spec: Spec) -> None:
    """Add the gradient of the centre, distributed among the values near it."""
    distance = _compute_distances(x, saved, _invert_scale(saved.variance.sqrt(), spec))
    _distribute(dx, _gauss_(distance), d_centre)


def _add_mad(dx: Tensor, x: Tensor, d_centre: Tensor, d_variance: Tensor, saved: Saved, spec: Spec) -> None:
    """Add the gradient of the MAD, distributed among values about as far from the centre, then that of the centre."""
    assert saved.slopes is not None
    mad = saved.slopes[0]
    inverse = _invert_scale(MAD_TO_SIGMA * mad, spec)
    distance = _compute_distances(x, saved, inverse)
    scaled_mad = (mad * inverse).nan_to_num_(0.0)
    near = _gauss_(torch.abs(distance, out=torch.empty_like(distance)).sub_(view_per_channel(scaled_mad, x)))
    total = near.sum(dim=_axes(x))
    near.copysign_(distance).masked_fill_(distance == 0, 0.0)  # times the sign, without a tensor of signs
    d_each = _zero_nonfinite(multiply_gradient(d_variance, 2.0 * MAD_FACTORS[spec.kernel] * mad) / total)
    d_centre = d_centre - d_each * near.sum(dim=_axes(x))  # deviations fall where the centre rises
    dx.addcmul_(near, view_per_channel(d_each, x))
    del near
    _distribute(dx, _gauss_(distance), d_centre)


def _add_images(dx: Tensor, x: Tensor, d_centre: Tensor, d_variance: Tensor, saved: Saved, spec: Spec) -> None:
    """Add each image's slope times (x − centre), and its shift."""
    assert saved.finite is not None
    valid = saved.finite.bool()
    slope, shift = _differentiate_images(d_centre, d_variance, saved, spec, _plane_size(x), valid)
    shape = (*slope.shape, *[1] * (x.dim() - 2))
    shift = _zero_nonfinite(shift - multiply_gradient(slope, saved.centre.expand_as(slope)))
    added = torch.addcmul(shift.view(shape), x, slope.view(shape), out=torch.empty_like(x, dtype=slope.dtype))
    dx.add_(added.masked_fill_(~view_per_image(valid, x), 0.0))


def _differentiate_images(
    d_centre: Tensor, d_variance: Tensor, saved: Saved, spec: Spec, size: int, valid: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return, for medians over images, each image's slope in x − centre and its shift, ``(B, C)`` each."""
    assert saved.image_means is not None
    assert saved.image_variances is not None
    largest = torch.finfo(saved.image_means.dtype).max
    offsets = saved.image_means - saved.centre
    variances = saved.image_variances.masked_fill(saved.image_means.isinf(), torch.inf)
    values = torch.stack((saved.image_means, variances, offsets.abs()))
    selected = saved.selected.view(3, 2, -1).long()
    medians = values.gather(1, selected).mul_(0.5).sum(dim=1, keepdim=True)
    distances = values - medians
    if valid is not None:
        distances.masked_fill_(~valid.view(1, -1, 1), 0.0)
    count = distances.shape[1] if saved.finite_count is None or valid is None else saved.finite_count.clamp(min=1)
    sigma = (distances.square().sum(dim=1, keepdim=True) / count).sqrt_()
    exponent = (distances / (spec.temperature * sigma + torch.finfo(sigma.dtype).tiny)).square_().mul_(-0.5)
    exponent.nan_to_num_(-torch.inf, neginf=-torch.inf)
    if valid is not None:
        exponent.masked_fill_(~valid.view(1, -1, 1), -torch.inf)
    mean_weights, variance_weights, mad_weights = torch.softmax(exponent, dim=1).nan_to_num_(0.0)
    d_mad = multiply_gradient(d_variance, 2.0 * MAD_TO_SIGMA**2 * medians[2, 0])
    d_offsets = _zero_nonfinite(d_mad * mad_weights * torch.sign(offsets))
    d_means = mean_weights * _zero_nonfinite(d_centre - d_offsets.sum(dim=0)) + d_offsets
    slope = variance_weights * _zero_nonfinite(2.0 * d_variance / size)
    return slope, d_means / size - multiply_gradient(slope, offsets.clamp_(-largest, largest))


# --- passes over the activation ---------------------------------------------------------------------------------------


def _compute_distances(x: Tensor, saved: Saved, inverse: Tensor) -> Tensor:
    """Return (x − centre) / (√2 · scale) of each value, in float32; infinite in images that are not finite."""
    distance = torch.sub(x, view_per_channel(saved.centre, x), out=torch.empty_like(x, dtype=torch.float32))
    if saved.finite is not None:
        distance.masked_fill_(view_per_image(saved.finite == 0, x), torch.inf)
    return distance.mul_(view_per_channel(inverse, x))


def _invert_scale(sigma: Tensor, spec: Spec) -> Tensor:
    """Return 1 / (√2 · scale); never 0, because 0 times an infinite distance is NaN."""
    tiny = torch.finfo(sigma.dtype).tiny
    return (_SQRT_HALF / (spec.temperature * sigma + tiny)).nan_to_num_(1.0).clamp_(min=tiny)


def _gauss_(distance: Tensor) -> Tensor:
    """Return exp(−d²), computed in place."""
    return torch.addcmul(distance.new_zeros(()), distance, distance, value=-1.0, out=distance).exp_()


def _distribute(dx: Tensor, weights: Tensor, amount: Tensor) -> None:
    """Add each channel's amount to its values, in proportion to their weights."""
    dx.addcmul_(weights, view_per_channel(_zero_nonfinite(amount / weights.sum(dim=_axes(dx))), dx))


def _zero_nonfinite(coefficient: Tensor) -> Tensor:
    """Return the coefficient with 0 where it is not finite, so that no gradient flows there."""
    return coefficient.nan_to_num(0.0, 0.0, 0.0)


def _axes(x: Tensor) -> list[int]:
    return [axis for axis in range(x.dim()) if axis != 1]


def _plane_size(x: Tensor) -> int:
    return x.numel() // (x.shape[0] * x.shape[1])
