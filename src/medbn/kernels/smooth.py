"""Medians whose gradient goes to all values near them, by a Gaussian weight: an attacker's smooth gradients.

The value is the true median. Its gradient in each value is e / Σe with e = exp(−½ · ((x − median) / scale)²) and
scale = temperature · σ, all of which are constants.

``median`` is that in plain torch, for anything that autograd does. ``backward`` is the gradient of a layer whose fast
forward pass has saved the medians: what the fast backward pass makes of the affine map, and the statistics' part by a
few more passes over the activation, in place.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import c, reference, triton
from .reference import MAD_FACTORS, MAD_TO_SIGMA
from .saved import Saved, Spec

_HALF = 0.5**0.5
_NOWHERE = 2**31 - 1


def median(x: Tensor, middle: Tensor, sigma: Tensor, valid: Tensor | None, temperature: float) -> Tensor:
    """The ``middle`` of each channel, which is known, with the gradient of a mean of the values near it.

    Args:
        x: ``(B, C, *)``.
        middle: ``(C,)``, the value.
        sigma: ``(C,)``, the spread that ``temperature`` is a multiple of.
        valid: ``(B,)`` mask of the images that count; None for all.
        temperature: how far near is.
    """
    x = x.to(middle.dtype)
    axes, shape, tiny = _axes(x), (1, -1, *[1] * (x.dim() - 2)), torch.finfo(x.dtype).tiny
    with torch.no_grad():
        scale = temperature * sigma + tiny
        exponent = -0.5 * ((x - middle.view(shape)) / scale.view(shape)).square()
        keep = ~exponent.isnan() if valid is None else ~exponent.isnan() & valid.view(-1, *[1] * (x.dim() - 1))
        exponent = torch.where(keep, exponent, -torch.inf)
        # A mean of two values may be far from both: what is nearest has a weight nevertheless.
        weights = torch.exp(exponent - exponent.amax(dim=axes, keepdim=True))
        weights = torch.where(keep & ~weights.isnan(), weights, 0.0)
        weights = weights / weights.sum(dim=axes, keepdim=True).clamp(min=tiny)
    return reference.substitute(middle, torch.where(weights > 0, weights * x, 0.0).sum(dim=axes))


def backward(g: Tensor, x: Tensor, weight: Tensor | None, saved: Saved, spec: Spec) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of input, weight and bias, like ``dispatch.backward``, with ``spec.temperature``."""
    return (gpu_backward if x.is_cuda else cpu_backward)(g, x, weight, saved, spec)


def cpu_backward(
    g: Tensor, x: Tensor, weight: Tensor | None, saved: Saved, spec: Spec
) -> tuple[Tensor, Tensor, Tensor]:
    """On a CPU: what is a slope and a shift per channel or image goes into the pass that writes the gradient."""
    if saved.finite is not None:
        return c.among_finite(cpu_backward, g, x, weight, saved, spec)
    sum_g, sum_gx = c.reduce(g, x, saved.used_centre)
    rate = saved.inverse_std.double()
    gain = rate * sum_gx
    along, d_centre, d_variance = _to_statistics(sum_g, gain, rate, weight, spec.batch_weight)
    if spec.kernel == "image_median":
        slope, shift = _to_images(d_centre.float(), d_variance.float(), saved, spec, _size(x), None)
        dx = c.combine(g, x, saved.centre, along.float(), slope, shift)
    else:
        slope, extra = _to_values(d_centre, d_variance, saved, x.numel() // x.shape[1])
        dx = c.combine(g, x, saved.centre, along.float(), slope.float(), torch.zeros_like(saved.centre))
        _add_median(dx, x, extra.float(), saved, spec)
    return dx, gain.float(), sum_g.float()


def gpu_backward(
    g: Tensor, x: Tensor, weight: Tensor | None, saved: Saved, spec: Spec
) -> tuple[Tensor, Tensor, Tensor]:
    """On a GPU, where nobody looks whether there are images that are not finite: they are always masked."""
    assert saved.finite_count is not None
    if spec.kernel == "median":  # all but what goes to the place of the median: there is none
        nowhere = saved._replace(selected=torch.full_like(saved.selected, _NOWHERE))
        dx, gain, sum_g = triton.backward(g, x, weight, nowhere, spec)
    else:
        dx, gain, sum_g = triton.backward(g, x, weight, saved, spec._replace(batch_weight=0.0))
    _, d_centre, d_variance = _to_statistics(sum_g, gain, saved.inverse_std, weight, spec.batch_weight)
    if spec.kernel == "median":
        _, extra = _to_values(d_centre, d_variance, saved, (saved.finite_count * _size(x)).clamp(min=1))
        _add_median(dx, x, extra, saved, spec)
    elif spec.kernel == "image_median":
        _add_images(dx, x, d_centre, d_variance, saved, spec)
    else:
        _add_mad(dx, x, d_centre, d_variance, saved, spec)
    return dx, gain, sum_g


def _to_statistics(
    sum_g: Tensor, gain: Tensor, rate: Tensor, weight: Tensor | None, share: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The slope of the affine map, and the gradients of the batch's centre and variance."""
    along = rate if weight is None else weight.to(rate.dtype) * rate
    return along, -share * along * sum_g, -0.5 * share * along * rate * gain


def _to_values(d_centre: Tensor, d_variance: Tensor, saved: Saved, count: Tensor | int) -> tuple[Tensor, Tensor]:
    """For a mean squared deviation: the slope in x − centre, and all of what goes to the centre."""
    slope = 2.0 * d_variance / count
    return slope, d_centre - _product(slope, saved.deviation_sum.to(slope.dtype))


def _add_median(dx: Tensor, x: Tensor, extra: Tensor, saved: Saved, spec: Spec) -> None:
    """Share what goes to the centre among the values near it."""
    distance = _distances(x, saved, _inverse(saved.variance.sqrt(), spec))
    _share_out(dx, _gauss(distance), extra)


def _add_mad(dx: Tensor, x: Tensor, d_centre: Tensor, d_variance: Tensor, saved: Saved, spec: Spec) -> None:
    """Share what goes to the MAD among the values that are about as far from the centre, then as ``_add_median``."""
    assert saved.slopes is not None
    mad = saved.slopes[0]
    inverse = _inverse(MAD_TO_SIGMA * mad, spec)
    distance = _distances(x, saved, inverse)
    edge = (mad * inverse).nan_to_num_(0.0)
    away = _gauss(torch.abs(distance, out=torch.empty_like(distance)).sub_(_wide(edge, x)))
    total = away.sum(dim=_axes(x))
    away.copysign_(distance).masked_fill_(distance == 0, 0.0)  # times the sign, without an activation of signs
    each = _known(_product(d_variance, 2.0 * MAD_FACTORS[spec.kernel] * mad) / total)
    fall = each * away.sum(dim=_axes(x))
    dx.addcmul_(away, _wide(each, x))
    del away
    _share_out(dx, _gauss(distance), d_centre - fall)


def _add_images(dx: Tensor, x: Tensor, d_centre: Tensor, d_variance: Tensor, saved: Saved, spec: Spec) -> None:
    """Add each image's slope times x − centre, and its shift."""
    assert saved.finite is not None
    valid = saved.finite.bool()
    slope, shift = _to_images(d_centre, d_variance, saved, spec, _size(x), valid)
    shape = (*slope.shape, *[1] * (x.dim() - 2))
    shift = _known(shift - _product(slope, saved.centre.expand_as(slope)))
    added = torch.addcmul(shift.view(shape), x, slope.view(shape), out=torch.empty_like(x, dtype=slope.dtype))
    dx.add_(added.masked_fill_(~_per_image(valid, x), 0.0))


def _to_images(
    d_centre: Tensor, d_variance: Tensor, saved: Saved, spec: Spec, size: int, valid: Tensor | None
) -> tuple[Tensor, Tensor]:
    """For medians over images: the slope in x − centre and the shift of each image, ``(B, C)``."""
    assert saved.image_means is not None
    assert saved.image_variances is not None
    largest = torch.finfo(saved.image_means.dtype).max
    away = saved.image_means - saved.centre
    withins = saved.image_variances.masked_fill(saved.image_means.isinf(), torch.inf)
    values = torch.stack((saved.image_means, withins, away.abs()))
    chosen = saved.selected.view(3, 2, -1).long()
    middles = values.gather(1, chosen).mul_(0.5).sum(dim=1, keepdim=True)
    apart = values - middles
    if valid is not None:
        apart.masked_fill_(~valid.view(1, -1, 1), 0.0)
    count = apart.shape[1] if saved.finite_count is None or valid is None else saved.finite_count.clamp(min=1)
    sigma = (apart.square().sum(dim=1, keepdim=True) / count).sqrt_()
    exponent = (apart / (spec.temperature * sigma + torch.finfo(sigma.dtype).tiny)).square_().mul_(-0.5)
    exponent.nan_to_num_(-torch.inf, neginf=-torch.inf)
    if valid is not None:
        exponent.masked_fill_(~valid.view(1, -1, 1), -torch.inf)
    centres, inners, mads = torch.softmax(exponent, dim=1).nan_to_num_(0.0)
    d_mad = _product(d_variance, 2.0 * MAD_TO_SIGMA**2 * middles[2, 0])
    up = _known(d_mad * mads * torch.sign(away))
    d_means = centres * _known(d_centre - up.sum(dim=0)) + up
    slope = inners * _known(2.0 * d_variance / size)
    return slope, d_means / size - _product(slope, away.clamp_(-largest, largest))


# --- passes over the activation ---------------------------------------------------------------------------------------


def _distances(x: Tensor, saved: Saved, inverse: Tensor) -> Tensor:
    """(x − centre) / (√2 · scale) of each value, in float32; infinite in images that take no part."""
    distance = torch.sub(x, _wide(saved.centre, x), out=torch.empty_like(x, dtype=torch.float32))
    if saved.finite is not None:
        distance.masked_fill_(_per_image(saved.finite == 0, x), torch.inf)
    return distance.mul_(_wide(inverse, x))


def _inverse(sigma: Tensor, spec: Spec) -> Tensor:
    """1 / (√2 · scale): never 0, which would make NaN of what is infinite."""
    tiny = torch.finfo(sigma.dtype).tiny
    return (_HALF / (spec.temperature * sigma + tiny)).nan_to_num_(1.0).clamp_(min=tiny)


def _gauss(distance: Tensor) -> Tensor:
    """exp(−d²), in place."""
    return torch.addcmul(distance.new_zeros(()), distance, distance, value=-1.0, out=distance).exp_()


def _share_out(dx: Tensor, near: Tensor, amount: Tensor) -> None:
    """Add each channel's amount to its values, in proportion to how near they are."""
    dx.addcmul_(near, _wide(_known(amount / near.sum(dim=_axes(dx))), dx))


def _product(gradient: Tensor, value: Tensor) -> Tensor:
    """Their product, and 0 where the gradient is 0, whatever the value is."""
    return torch.where(gradient == 0, 0.0, gradient * value)


def _known(coefficient: Tensor) -> Tensor:
    """0 where it is not finite: there is no direction to follow."""
    return coefficient.nan_to_num(0.0, 0.0, 0.0)


def _wide(per_channel: Tensor, x: Tensor) -> Tensor:
    return per_channel.view(1, -1, *[1] * (x.dim() - 2))


def _per_image(mask: Tensor, x: Tensor) -> Tensor:
    return mask.view(-1, *[1] * (x.dim() - 1))


def _axes(x: Tensor) -> list[int]:
    return [axis for axis in range(x.dim()) if axis != 1]


def _size(x: Tensor) -> int:
    return x.numel() // (x.shape[0] * x.shape[1])
