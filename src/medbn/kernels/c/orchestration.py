"""Robust normalisation on a CPU: the passes over the activation in C, what is per channel or per image in torch.

With y = w · (x − c) · r + b and r = 1/√(v + eps), the gradient of the input is ``w · r · g``, plus a slope times
(x − centre) and a shift per channel or image, plus something at the single elements that medians are made of.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..reference import MAD_TO_SIGMA, mix
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
    x: Tensor, weight: Tensor | None, bias: Tensor | None, held: tuple[Tensor, Tensor] | None, spec: Spec
) -> tuple[Tensor, Saved]:
    """Normalise; ``x`` is what ``native`` supports."""
    made = _image_forward(x, weight, bias, held, spec) if spec.kernel == "image_median" else None
    if spec.kernel == "median":
        known = binding.median_forward(x, weight, bias, held, spec.batch_weight, spec.eps)
        if known is not None:
            centre, variance, used, scale = known.table.unbind()
            made = known.y, Saved(centre, variance, used, scale, known.deviation, known.place)
    return made or _isolated_forward(x, weight, bias, held, spec)


def _image_forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, held: tuple[Tensor, Tensor] | None, spec: Spec
) -> tuple[Tensor, Saved] | None:
    statistics = _over_images(x)
    if statistics is None:
        return None
    centre, variance, deviation, chosen, means, slopes, withins = statistics
    used, used_variance = mix((centre, variance), held, spec.batch_weight)
    r = torch.rsqrt(used_variance + spec.eps)
    scale = r if weight is None else r * weight.float()
    y = binding.normalise(x, used, scale, torch.zeros_like(r) if bias is None else bias.float())
    return y, Saved(centre, variance, used, r, deviation, chosen, means, slopes, image_variances=withins)


def statistics(x: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """The centre and the variance of each channel, over the images that are finite."""
    saved = _over_images(x) if kind == "image_median" else _over_values(x)
    if saved is not None:
        return saved[0], saved[1]
    others = x[_finite(x)].contiguous()
    if len(others):
        return statistics(others, kind)
    nothing = torch.full((2, x.shape[1]), torch.nan)
    return nothing[0], nothing[1]


def backward(g: Tensor, x: Tensor, weight: Tensor | None, saved: Saved, spec: Spec) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of input, weight and bias."""
    if saved.finite is not None:
        return among_finite(backward, g, x, weight, saved, spec)
    if spec.backward == "mean" or saved.image_means is None:
        known = (saved.used_centre, saved.centre, saved.inverse_std, weight, saved.deviation_sum)
        return binding.channel_backward(
            g, x, *known, None if spec.backward == "mean" else saved.selected, spec.batch_weight
        )
    sum_g, sum_gx = binding.reduce(g, x, saved.used_centre)
    rate = saved.inverse_std.double()
    gain = rate * sum_gx
    along = rate if weight is None else weight.double() * rate
    d_centre, d_variance = -spec.batch_weight * along * sum_g, -0.5 * spec.batch_weight * along * rate * gain
    slope, shift = _to_images(d_centre, d_variance, saved, x.numel() // saved.image_means.numel())
    return binding.combine(g, x, saved.centre, along.float(), slope, shift), gain.float(), sum_g.float()


def _over_values(x: Tensor) -> tuple[Tensor, ...] | None:
    saved = binding.median_statistics(x)
    return (saved.centre, saved.variance, saved.deviation, saved.index) if saved.finite else None


def _over_images(x: Tensor) -> tuple[Tensor, ...] | None:
    means, withins = binding.image_moments(x)
    # Huge values may have an infinite variance: an image of these stays one image.
    if not bool(means.isfinite().all() and withins.isfinite().all()) and not bool(_finite(x).all()):
        return None
    centre, *centres = _middle(means)
    inner, *inners = _middle(withins)
    away = means - centre
    mad, *mads = _middle(away.abs())
    chosen = torch.stack((*centres, *inners, *mads))
    slopes = MAD_TO_SIGMA**2 * mad * torch.sign(away.gather(0, chosen[4:]))
    variance = inner + (MAD_TO_SIGMA * mad).square()
    size = x.numel() // means.numel()
    return centre, variance, size * away.double().sum(dim=0), chosen, means, slopes, withins


def _to_images(d_centre: Tensor, d_variance: Tensor, saved: Saved, size: int) -> tuple[Tensor, Tensor]:
    """From the gradients of centre and variance to a slope and a shift per image and channel."""
    assert saved.image_means is not None
    assert saved.slopes is not None
    centres, inners, mads = saved.selected.view(3, 2, -1)
    up = d_variance * saved.slopes
    half = 0.5 * (d_centre - up.sum(dim=0)).float()
    d_means, d_withins = torch.zeros_like(saved.image_means), torch.zeros_like(saved.image_means)
    d_means.scatter_add_(0, mads, up.float()).scatter_add_(0, centres, half.expand(2, -1))
    d_withins.scatter_add_(0, inners, (0.5 * d_variance).float().expand(2, -1))
    slope = 2.0 * d_withins / size
    away = (saved.image_means - saved.centre).clamp_(-_LARGEST, _LARGEST)  # so that 0 times it is 0
    return slope, d_means / size - slope * away


def _middle(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The median of ``(B, C)`` over images, and the two images that it is the mean of."""
    low = binding.median_statistics(values)
    if not low.finite:
        ordered, order = values.sort(dim=0, stable=True)
        lower, upper = (len(values) - 1) // 2, len(values) // 2
        return 0.5 * ordered[lower] + 0.5 * ordered[upper], order[lower], order[upper]
    first = _stable(values, low.centre, low.index, (len(values) - 1) // 2)
    if len(values) % 2:
        return low.centre, first, first
    high = binding.median_statistics(-values)
    second = _stable(values, -high.centre, high.index, len(values) // 2)
    return 0.5 * low.centre - 0.5 * high.centre, first, second


def _stable(values: Tensor, value: Tensor, index: Tensor, rank: int) -> Tensor:
    """Of equal images, the one that a stable sort has at this rank, as the reference path chooses."""
    equal = values == value
    counts = equal.sum(dim=0)
    if not bool((counts > 1).any()):
        return index
    less = (values < value).sum(dim=0)
    return (equal & (equal.cumsum(dim=0) == rank - less + 1)).to(torch.uint8).argmax(dim=0)


# Images that are not finite take no part, have no output, and get no gradient: the others are computed by themselves.


def _finite(x: Tensor) -> Tensor:
    axes = list(range(1, x.dim()))
    return x.amax(axes).isfinite() & x.amin(axes).isfinite()


def _isolated_forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, held: tuple[Tensor, Tensor] | None, spec: Spec
) -> tuple[Tensor, Saved]:
    finite = _finite(x)
    others = x[finite].contiguous()
    y = torch.full_like(x, torch.nan)
    if len(others):
        y[finite], saved = forward(others, weight, bias, held, spec)
    else:
        saved = _nothing(x, spec)
    if saved.image_means is not None and saved.image_variances is not None:
        means, withins = torch.zeros(2, *x.shape[:2])
        means[finite], withins[finite] = saved.image_means, saved.image_variances
        saved = saved._replace(image_means=means, image_variances=withins)
    return y, saved._replace(finite=finite.int(), finite_count=finite.sum(dtype=torch.int32).view(1))


def among_finite(
    backward: Backward, g: Tensor, x: Tensor, weight: Tensor | None, saved: Saved, spec: Spec
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients that ``backward`` finds where there are finite images only."""
    assert saved.finite is not None
    finite = saved.finite.bool()
    others, dx = x[finite].contiguous(), torch.zeros_like(x)
    if not len(others):
        return dx, torch.zeros(x.shape[1]), torch.zeros(x.shape[1])
    means, withins = (None if t is None else t[finite] for t in (saved.image_means, saved.image_variances))
    saved = saved._replace(image_means=means, image_variances=withins, finite=None, finite_count=None)
    dx[finite], d_weight, d_bias = backward(g[finite], others, weight, saved, spec)
    return dx, d_weight, d_bias


def _nothing(x: Tensor, spec: Spec) -> Saved:
    """What there is to find in no image."""
    channels = x.shape[1]
    no, zeros = torch.full((4, channels), torch.nan), torch.zeros(channels, dtype=torch.float64)
    chosen, means, slopes = shapes(spec.kernel, 0, channels)
    images = (torch.zeros(means) if spec.kernel == "image_median" else None, torch.zeros(slopes))
    saved = Saved(no[0], no[1], no[2], no[3], zeros, torch.zeros(chosen, dtype=torch.int64), *images)
    return saved._replace(image_variances=saved.image_means)
