"""Robust normalisation on a CPU: which C functions run in which order; per channel or image, the arithmetic is torch's.

With y = w · (x − c) · r + b and r = 1/√(v + eps), the gradient of the input is

    dx = w · r · g  +  slope · (x − centre) + shift  +  a summand at the elements that the medians are taken from.

The median's forward and backward pass are one C call each. Medians over images take C passes for the moments of images,
the normalisation, the sums and the gradient, and torch in between. Images that are not finite take no part: where there
are any, the others are copied and computed alone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..reference import MAD_TO_SIGMA, differentiate_affine, finite_images, mix
from ..saved import Saved, Spec, shapes
from . import binding

KERNELS = ("median", "image_median")
"""The estimators that are computed here.

The MADs are not: they are small, and dividing by them amplifies rounding. The reference path is nearly as fast on a
CPU, and with it padding a batch does not change the adapted parameters in their third digit.
"""
Backward = Callable[[Tensor, Tensor, "Tensor | None", Saved, Spec], tuple[Tensor, Tensor, Tensor]]
_LARGEST = torch.finfo(torch.float32).max


def supported(x: Tensor) -> bool:
    """Return whether ``forward`` takes ``x``. A compiled program calls ``dense`` first: there, any strides will do."""
    if not torch.compiler.is_compiling():
        return binding.supported(x)
    plain = x.device.type == "cpu" and x.layout is torch.strided and x.dtype is torch.float32
    return plain and x.dim() >= 2 and 0 < x.numel() < x.shape[1] * 2**31


def dense(x: Tensor) -> Tensor:
    """Return ``x`` itself where the kernels can read its strides, else a contiguous copy."""
    return x if binding.supported(x) else x.resolve_neg().contiguous()


def forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running: tuple[Tensor, Tensor] | None, spec: Spec
) -> tuple[Tensor, Saved]:
    """Normalise ``x``; return the output and what the backward pass needs."""
    result = (_median_forward if spec.kernel == "median" else _image_forward)(x, weight, bias, running, spec)
    return result or _isolated_forward(x, weight, bias, running, spec)


def backward(g: Tensor, x: Tensor, weight: Tensor | None, saved: Saved, spec: Spec) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of input, weight and bias; the last two in float32."""
    if saved.finite is not None:
        return isolate_nonfinite(backward, g, x, weight, saved, spec)
    if spec.backward == "mean" or saved.image_means is None:
        per_channel = (saved.used_centre, saved.centre, saved.inverse_std, weight, saved.deviation_sum)
        position = None if spec.backward == "mean" else saved.selected
        return binding.channel_backward(g, x, *per_channel, position, spec.batch_weight)
    sum_g, sum_gx = binding.reduce(g, x, saved.used_centre)
    inverse_std = saved.inverse_std.double()
    d_weight = inverse_std * sum_gx
    scale, d_centre, d_variance = differentiate_affine(sum_g, d_weight, inverse_std, weight, spec.batch_weight)
    slope, shift = _image_coefficients(d_centre, d_variance, saved, x.numel() // saved.image_means.numel())
    return binding.combine(g, x, saved.centre, scale.float(), slope, shift), d_weight.float(), sum_g.float()


def statistics(x: Tensor, kernel: str) -> tuple[Tensor, Tensor]:
    """Return the centre and the variance of each channel over the images that are finite; NaN where none is."""
    results = _median_statistics(x) if kernel == "median" else _image_statistics(x)
    if results is not None:
        return results[0], results[1]
    others = x[finite_images(x)].contiguous()
    if len(others):
        return statistics(others, kernel)
    empty = torch.full((2, x.shape[1]), torch.nan)
    return empty[0], empty[1]


# --- the median -------------------------------------------------------------------------------------------------------


def _median_statistics(x: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the centre and the variance; None if a value is not finite."""
    result = binding.median_statistics(x)
    return (result.centre, result.variance) if result.finite else None


def _median_forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running: tuple[Tensor, Tensor] | None, spec: Spec
) -> tuple[Tensor, Saved] | None:
    """Normalise with the median; return None if a value is not finite."""
    result = binding.median_forward(x, weight, bias, running, spec.batch_weight, spec.eps)
    if result is None:
        return None
    centre, variance, used_centre, inverse_std = result.table.unbind()
    return result.y, Saved(centre, variance, used_centre, inverse_std, result.deviation_sum, result.position)


# --- medians over images ----------------------------------------------------------------------------------------------


def _image_statistics(x: Tensor) -> tuple[Tensor, ...] | None:
    """Return centre, variance, deviation_sum, selected, image_means, slopes and image_variances, as ``Saved`` has them.

    None if a value is not finite.
    """
    means, variances = binding.image_moments(x)
    # An image of huge values may have an infinite variance: it is finite nevertheless.
    if not bool(means.isfinite().all() and variances.isfinite().all()) and not bool(finite_images(x).all()):
        return None
    centre, *mean_images = _middle_of_images(means)
    inner, *variance_images = _middle_of_images(variances)
    deviations = means - centre
    mad, *mad_images = _middle_of_images(deviations.abs())
    selected = torch.stack((*mean_images, *variance_images, *mad_images))
    slopes = MAD_TO_SIGMA**2 * mad * torch.sign(deviations.gather(0, selected[4:]))
    variance = inner + (MAD_TO_SIGMA * mad).square()
    size = x.numel() // means.numel()
    return centre, variance, size * deviations.double().sum(dim=0), selected, means, slopes, variances


def _image_forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running: tuple[Tensor, Tensor] | None, spec: Spec
) -> tuple[Tensor, Saved] | None:
    """Normalise with medians over images; return None if a value is not finite."""
    results = _image_statistics(x)
    if results is None:
        return None
    centre, variance, deviation_sum, selected, means, slopes, variances = results
    used_centre, used_variance = mix((centre, variance), running, spec.batch_weight)
    inverse_std = torch.rsqrt(used_variance + spec.eps)
    scale = inverse_std if weight is None else inverse_std * weight.float()
    y = binding.normalise(x, used_centre, scale, torch.zeros_like(inverse_std) if bias is None else bias.float())
    per_image = (means, slopes, None, None, variances)
    return y, Saved(centre, variance, used_centre, inverse_std, deviation_sum, selected, *per_image)


def _image_coefficients(d_centre: Tensor, d_variance: Tensor, saved: Saved, size: int) -> tuple[Tensor, Tensor]:
    """Return the slope and the shift of each image and channel for these gradients of centre and variance."""
    assert saved.image_means is not None
    assert saved.slopes is not None
    mean_images, variance_images, mad_images = saved.selected.view(3, 2, -1)
    through_mad = d_variance * saved.slopes
    half = 0.5 * (d_centre - through_mad.sum(dim=0)).float()
    d_means, d_variances = torch.zeros_like(saved.image_means), torch.zeros_like(saved.image_means)
    d_means.scatter_add_(0, mad_images, through_mad.float()).scatter_add_(0, mean_images, half.expand(2, -1))
    d_variances.scatter_add_(0, variance_images, (0.5 * d_variance).float().expand(2, -1))
    slope = 2.0 * d_variances / size
    deviations = (saved.image_means - saved.centre).clamp_(-_LARGEST, _LARGEST)  # finite, so that 0 times it is 0
    return slope, d_means / size - slope * deviations


def _middle_of_images(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the median of ``(B, C)`` over images, and the two images that it is the mean of."""
    low = binding.median_statistics(values)
    if not low.finite:
        ordered, order = values.sort(dim=0, stable=True)
        lower, upper = (len(values) - 1) // 2, len(values) // 2
        return 0.5 * ordered[lower] + 0.5 * ordered[upper], order[lower], order[upper]
    first = _image_of_rank(values, low.centre, low.position, (len(values) - 1) // 2)
    if len(values) % 2:
        return low.centre, first, first
    high = binding.median_statistics(-values)
    second = _image_of_rank(values, -high.centre, high.position, len(values) // 2)
    return 0.5 * low.centre - 0.5 * high.centre, first, second


def _image_of_rank(values: Tensor, value: Tensor, position: Tensor, rank: int) -> Tensor:
    """Return the image that has ``value``; of several, the one that a stable sort puts at ``rank``, as the reference.

    ``position`` is the first image that has it.
    """
    equal = values == value
    counts = equal.sum(dim=0)
    if not bool((counts > 1).any()):
        return position
    less = (values < value).sum(dim=0)
    return (equal & (equal.cumsum(dim=0) == rank - less + 1)).to(torch.uint8).argmax(dim=0)


# --- images that are not finite ---------------------------------------------------------------------------------------


def _isolated_forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running: tuple[Tensor, Tensor] | None, spec: Spec
) -> tuple[Tensor, Saved]:
    """Normalise the finite images alone; the output of the others is NaN."""
    finite = finite_images(x)
    others = x[finite].contiguous()
    y = torch.full_like(x, torch.nan)
    if len(others):
        y[finite], saved = forward(others, weight, bias, running, spec)
    else:
        saved = _saved_of_no_image(x, spec)
    if saved.image_means is not None and saved.image_variances is not None:
        means, variances = torch.zeros(2, *x.shape[:2])
        means[finite], variances[finite] = saved.image_means, saved.image_variances
        saved = saved._replace(image_means=means, image_variances=variances)
    return y, saved._replace(finite=finite.int(), finite_count=finite.sum(dtype=torch.int32).view(1))


def isolate_nonfinite(
    backward: Backward, g: Tensor, x: Tensor, weight: Tensor | None, saved: Saved, spec: Spec
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients that ``backward`` computes for the finite images alone; the others' are 0."""
    assert saved.finite is not None
    finite = saved.finite.bool()
    others, dx = x[finite].contiguous(), torch.zeros_like(x)
    if not len(others):
        return dx, torch.zeros(x.shape[1]), torch.zeros(x.shape[1])
    means, variances = (None if t is None else t[finite] for t in (saved.image_means, saved.image_variances))
    saved = saved._replace(image_means=means, image_variances=variances, finite=None, finite_count=None)
    dx[finite], d_weight, d_bias = backward(g[finite], others, weight, saved, spec)
    return dx, d_weight, d_bias


def _saved_of_no_image(x: Tensor, spec: Spec) -> Saved:
    """Return what ``forward`` saves where no image is finite: NaN statistics, taken from nowhere."""
    channels = x.shape[1]
    nan, zeros = torch.full((4, channels), torch.nan), torch.zeros(channels, dtype=torch.float64)
    selected, means, slopes = shapes(spec.kernel, 0, channels)
    images = (torch.zeros(means) if spec.kernel == "image_median" else None, torch.zeros(slopes))
    saved = Saved(nan[0], nan[1], nan[2], nan[3], zeros, torch.zeros(selected, dtype=torch.int64), *images)
    return saved._replace(image_variances=saved.image_means)
