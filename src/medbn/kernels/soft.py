"""Medians whose gradient goes to all values near them, by a Gaussian weight: an attacker's smooth gradients.

The value is the true median. Its gradient in each value is e / Σe with e = exp(−½ · ((x − median) / scale)²) and
scale = temperature · σ, all of which are constants.

``median`` is that in plain torch, for anything that autograd does. ``backward`` is the gradient of a layer whose fast
forward pass has found the medians: what the fast backward pass makes of the affine map, and the statistics' part by a
few more passes over the activation, in place.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import cpu, fused, native, reference
from .cpu import MAD_TO_SIGMA
from .found import Found, Wanted

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


def backward(
    g: Tensor, x: Tensor, weight: Tensor | None, found: Found, wanted: Wanted
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of input, weight and bias, like ``fused.backward``, with ``wanted.softness`` for a temperature."""
    return (gpu_backward if x.is_cuda else cpu_backward)(g, x, weight, found, wanted)


def cpu_backward(
    g: Tensor, x: Tensor, weight: Tensor | None, found: Found, wanted: Wanted
) -> tuple[Tensor, Tensor, Tensor]:
    """On a CPU: what is a slope and a shift per channel or image goes into the pass that writes the gradient."""
    if found.finite is not None:
        return cpu.among_finite(cpu_backward, g, x, weight, found, wanted)
    sum_g, sum_gx = native.reduce(g, x, found.used)
    rate = found.scale.double()
    gain = rate * sum_gx
    along, d_centre, d_variance = _to_statistics(sum_g, gain, rate, weight, wanted.share)
    if wanted.kind == "image_median":
        slope, shift = _to_images(d_centre.float(), d_variance.float(), found, wanted, _size(x), None)
        dx = native.combine(g, x, found.centre, along.float(), slope, shift)
    else:
        slope, extra = _to_values(d_centre, d_variance, found, x.numel() // x.shape[1])
        dx = native.combine(g, x, found.centre, along.float(), slope.float(), torch.zeros_like(found.centre))
        _add_median(dx, x, extra.float(), found, wanted)
    return dx, gain.float(), sum_g.float()


def gpu_backward(
    g: Tensor, x: Tensor, weight: Tensor | None, found: Found, wanted: Wanted
) -> tuple[Tensor, Tensor, Tensor]:
    """On a GPU, where nobody looks whether there are images that are not finite: they are always masked."""
    assert found.counted is not None
    if wanted.kind == "median":  # all but what goes to the place of the median: there is none
        nowhere = found._replace(chosen=torch.full_like(found.chosen, _NOWHERE))
        dx, gain, sum_g = fused._gpu_backward(g, x, weight, nowhere, wanted)
    else:
        dx, gain, sum_g = fused._gpu_backward(g, x, weight, found, wanted._replace(share=0.0))
    _, d_centre, d_variance = _to_statistics(sum_g, gain, found.scale, weight, wanted.share)
    if wanted.kind == "median":
        _, extra = _to_values(d_centre, d_variance, found, (found.counted * _size(x)).clamp(min=1))
        _add_median(dx, x, extra, found, wanted)
    elif wanted.kind == "image_median":
        _add_images(dx, x, d_centre, d_variance, found, wanted)
    else:
        _add_mad(dx, x, d_centre, d_variance, found, wanted)
    return dx, gain, sum_g


def _to_statistics(
    sum_g: Tensor, gain: Tensor, rate: Tensor, weight: Tensor | None, share: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The slope of the affine map, and the gradients of the batch's centre and variance."""
    along = rate if weight is None else weight.to(rate.dtype) * rate
    return along, -share * along * sum_g, -0.5 * share * along * rate * gain


def _to_values(d_centre: Tensor, d_variance: Tensor, found: Found, count: Tensor | int) -> tuple[Tensor, Tensor]:
    """For a mean squared deviation: the slope in x − centre, and all of what goes to the centre."""
    slope = 2.0 * d_variance / count
    return slope, d_centre - _product(slope, found.deviation.to(slope.dtype))


def _add_median(dx: Tensor, x: Tensor, extra: Tensor, found: Found, wanted: Wanted) -> None:
    """Share what goes to the centre among the values near it."""
    distance = _distances(x, found, _inverse(found.variance.sqrt(), wanted))
    _share_out(dx, _gauss(distance), extra)


def _add_mad(dx: Tensor, x: Tensor, d_centre: Tensor, d_variance: Tensor, found: Found, wanted: Wanted) -> None:
    """Share what goes to the MAD among the values that are about as far from the centre, then as ``_add_median``."""
    assert found.slopes is not None
    mad = found.slopes[0]
    inverse = _inverse(MAD_TO_SIGMA * mad, wanted)
    distance = _distances(x, found, inverse)
    edge = (mad * inverse).nan_to_num_(0.0)
    away = _gauss(torch.abs(distance, out=torch.empty_like(distance)).sub_(_wide(edge, x)))
    total = away.sum(dim=_axes(x))
    away.copysign_(distance).masked_fill_(distance == 0, 0.0)  # times the sign, without an activation of signs
    each = _known(_product(d_variance, 2.0 * fused.FACTORS[wanted.kind] * mad) / total)
    fall = each * away.sum(dim=_axes(x))
    dx.addcmul_(away, _wide(each, x))
    del away
    _share_out(dx, _gauss(distance), d_centre - fall)


def _add_images(dx: Tensor, x: Tensor, d_centre: Tensor, d_variance: Tensor, found: Found, wanted: Wanted) -> None:
    """Add each image's slope times x − centre, and its shift."""
    assert found.finite is not None
    valid = found.finite.bool()
    slope, shift = _to_images(d_centre, d_variance, found, wanted, _size(x), valid)
    shape = (*slope.shape, *[1] * (x.dim() - 2))
    shift = _known(shift - _product(slope, found.centre.expand_as(slope)))
    added = torch.addcmul(shift.view(shape), x, slope.view(shape), out=torch.empty_like(x, dtype=slope.dtype))
    dx.add_(added.masked_fill_(~_per_image(valid, x), 0.0))


def _to_images(
    d_centre: Tensor, d_variance: Tensor, found: Found, wanted: Wanted, size: int, valid: Tensor | None
) -> tuple[Tensor, Tensor]:
    """For medians over images: the slope in x − centre and the shift of each image, ``(B, C)``."""
    assert found.means is not None
    assert found.withins is not None
    assert wanted.softness is not None
    largest = torch.finfo(found.means.dtype).max
    away = found.means - found.centre
    withins = found.withins.masked_fill(found.means.isinf(), torch.inf)
    values = torch.stack((found.means, withins, away.abs()))
    chosen = found.chosen.view(3, 2, -1).long()
    middles = values.gather(1, chosen).mul_(0.5).sum(dim=1, keepdim=True)
    apart = values - middles
    if valid is not None:
        apart.masked_fill_(~valid.view(1, -1, 1), 0.0)
    count = apart.shape[1] if found.counted is None or valid is None else found.counted.clamp(min=1)
    sigma = (apart.square().sum(dim=1, keepdim=True) / count).sqrt_()
    exponent = (apart / (wanted.softness * sigma + torch.finfo(sigma.dtype).tiny)).square_().mul_(-0.5)
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


def _distances(x: Tensor, found: Found, inverse: Tensor) -> Tensor:
    """(x − centre) / (√2 · scale) of each value, in float32; infinite in images that take no part."""
    distance = torch.sub(x, _wide(found.centre, x), out=torch.empty_like(x, dtype=torch.float32))
    if found.finite is not None:
        distance.masked_fill_(_per_image(found.finite == 0, x), torch.inf)
    return distance.mul_(_wide(inverse, x))


def _inverse(sigma: Tensor, wanted: Wanted) -> Tensor:
    """1 / (√2 · scale): never 0, which would make NaN of what is infinite."""
    assert wanted.softness is not None
    tiny = torch.finfo(sigma.dtype).tiny
    return (_HALF / (wanted.softness * sigma + tiny)).nan_to_num_(1.0).clamp_(min=tiny)


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
