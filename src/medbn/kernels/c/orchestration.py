"""Robust normalisation on a CPU: one C call for a forward pass, and one for a backward pass.

With y = w · (x − c) · r + b and r = 1/√(v + eps), the gradient of the input is

    dx = w · r · g  +  slope · (x − centre) + shift  +  a summand at the elements that the medians are taken from.

Images that are not finite take no part: where there are any, the others are copied and computed alone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..per_image import finite_images
from ..saved import Saved, Spec, shapes
from . import binding

KERNELS = ("median", "image_median")
"""The estimators that are computed here.

The MADs are not: they are small, and dividing by them amplifies rounding. The reference path is nearly as fast on a
CPU, and with it padding a batch does not change the adapted parameters in their third digit.
"""
Backward = Callable[[Tensor, Tensor, "Tensor | None", Saved, Spec], tuple[Tensor, Tensor, Tensor]]


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
    assert saved.slopes is not None
    per_image = (saved.selected, saved.slopes, saved.image_means)
    return binding.image_backward(
        g, x, saved.used_centre, saved.centre, saved.inverse_std, weight, *per_image, spec.batch_weight
    )


def statistics(x: Tensor, kernel: str) -> tuple[Tensor, Tensor]:
    """Return the centre and the variance of each channel over the images that are finite; NaN where none is."""
    results = _median_statistics(x) if kernel == "median" else _image_statistics(x)
    if results is not None:
        return results
    others = x[finite_images(x)].contiguous()
    if len(others):
        return statistics(others, kernel)
    empty = torch.full((2, x.shape[1]), torch.nan)
    return empty[0], empty[1]


def _median_statistics(x: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the centre and the variance; None if a value is not finite."""
    result = binding.median_statistics(x)
    return (result.centre, result.variance) if result.finite else None


def _image_statistics(x: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the centre and the variance over images; None if a value is not finite."""
    result = binding.image_forward(x, statistics_only=True)
    return None if result is None else (result.table[0], result.table[1])


def _median_forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running: tuple[Tensor, Tensor] | None, spec: Spec
) -> tuple[Tensor, Saved] | None:
    """Normalise with the median; return None if a value is not finite."""
    result = binding.median_forward(x, weight, bias, running, spec.batch_weight, spec.eps)
    if result is None:
        return None
    centre, variance, used_centre, inverse_std = result.table.unbind()
    return result.y, Saved(centre, variance, used_centre, inverse_std, result.deviation_sum, result.position)


def _image_forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running: tuple[Tensor, Tensor] | None, spec: Spec
) -> tuple[Tensor, Saved] | None:
    """Normalise with medians over images; return None if a value is not finite."""
    result = binding.image_forward(x, weight, bias, running, spec.batch_weight, spec.eps)
    if result is None or result.y is None:
        return None
    centre, variance, used_centre, inverse_std = result.table.unbind()
    per_channel = (centre, variance, used_centre, inverse_std, result.deviation_sum, result.selected)
    means, variances = result.moments.unbind()
    return result.y, Saved(*per_channel, means, result.slopes, image_variances=variances)


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
        saved = saved.replace(image_means=means, image_variances=variances)
    return y, saved.replace(finite=finite.int(), finite_count=finite.sum(dtype=torch.int32).view(1))


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
    saved = saved.replace(image_means=means, image_variances=variances, finite=None, finite_count=None)
    dx[finite], d_weight, d_bias = backward(g[finite], others, weight, saved, spec)
    return dx, d_weight, d_bias


def _saved_of_no_image(x: Tensor, spec: Spec) -> Saved:
    """Return what ``forward`` saves where no image is finite: NaN statistics, taken from nowhere."""
    channels = x.shape[1]
    nan, zeros = torch.full((4, channels), torch.nan), torch.zeros(channels, dtype=torch.float64)
    selected, means, slopes = shapes(spec.kernel, 0, channels)
    images = (torch.zeros(means) if spec.kernel == "image_median" else None, torch.zeros(slopes))
    saved = Saved(nan[0], nan[1], nan[2], nan[3], zeros, torch.zeros(selected, dtype=torch.int64), *images)
    return saved.replace(image_variances=saved.image_means)
