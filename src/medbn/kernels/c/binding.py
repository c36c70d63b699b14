"""The C functions as Python functions of tensors: one function per entry point of ``kernels.c``.

Inputs are float32 CPU activations ``(B, C, *)``, contiguous or channels last, for which ``supported`` holds; what is
per channel is ``(C,)``, in float32 unless said otherwise. Each pass reads the activation once (the moments of images
twice, the second time from cache), on ``torch.get_num_threads()`` threads, whose number changes no bit of the result.
Nothing here is differentiable: tensors are taken as values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .library import NO_MEMORY, NONFINITE, Layout, load, selected_instruction_set


def supported(x: Tensor) -> bool:
    """Return whether ``x`` is a plain dense float32 CPU tensor ``(B, C, *)``, contiguous or channels last."""
    return _is_plain(x) and _is_last(x) is not None


def _is_plain(x: Tensor) -> bool:
    """Return whether ``x`` is supported if its strides are."""
    return (
        type(x) in (Tensor, torch.nn.Parameter)
        and x.device.type == "cpu"
        and x.layout is torch.strided
        and x.dtype is torch.float32
        and x.dim() >= 2
        and 0 < x.numel() < x.shape[1] << 31
        and not x.is_neg()
    )


@dataclass(frozen=True)
class MedianStatistics:
    """The median of each channel, and moments about it."""

    centre: Tensor
    """The lower median; never −0.0."""
    variance: Tensor
    """The mean of ``(x − centre)²``."""
    deviation_sum: Tensor
    """The sum of ``x − centre``, in float64."""
    position: Tensor
    """Where the median first occurs, in (b, h, w) order; int64."""
    finite: bool
    """Whether all of ``x`` is finite; if not, the rest has no meaning."""


def median_statistics(x: Tensor) -> MedianStatistics:
    """Return the exact lower median of each channel, where it first occurs, and the moments about it."""
    centre, variance, position = _per_channel(x), _per_channel(x), _per_channel(x, torch.int64)
    deviation_sum = _per_channel(x, torch.float64)
    status = _call("median", x, x, None, centre, variance, deviation_sum, position)
    return MedianStatistics(centre, variance, deviation_sum, position, not status & NONFINITE)


def abs_median(x: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    """Return the exact lower median of ``|x − centre|`` in each channel, and where it first occurs. ``x`` is finite."""
    value, position = _per_channel(x), _per_channel(x, torch.int64)
    _call("median", x, x, _vector(centre, x), value, None, None, position)
    return value, position


def image_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return each image's own mean and biased variance in each channel, both ``(B, C)``."""
    mean, variance = x.new_empty(x.shape[:2]), x.new_empty(x.shape[:2])
    _call("image_moments", x, x, mean, variance)
    return mean, variance


def normalise(x: Tensor, centre: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Return ``(x − centre) · scale + bias`` in the memory format of ``x``."""
    y = torch.empty_like(x, requires_grad=False)
    _call("normalise", x, x, _vector(centre, x), _vector(scale, x), _vector(bias, x), y)
    return y


def reduce(g: Tensor, x: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums of ``g`` and of ``g · (x − centre)`` over each channel, in float64."""
    sum_g, sum_gx = _per_channel(x, torch.float64), _per_channel(x, torch.float64)
    _call("reduce", x, _like(g, x), x, _vector(centre, x), sum_g, sum_gx)
    return sum_g, sum_gx


def combine(g: Tensor, x: Tensor, centre: Tensor, scale: Tensor, slope: Tensor, shift: Tensor) -> Tensor:
    """Return ``scale · g + slope · (x − centre) + shift`` in the memory format of ``x``.

    ``slope`` and ``shift`` are ``(C,)`` or, per image, ``(B, C)``.
    """
    if slope.shape != shift.shape:
        raise ValueError(
            f"slope and shift must have the same shape, got {tuple(slope.shape)} and {tuple(shift.shape)}."
        )
    per_image = slope.dim() == 2
    slope, shift = (_table(t, x) if per_image else _vector(t, x) for t in (slope, shift))
    dx = torch.empty_like(x, requires_grad=False)
    _call("combine", x, _like(g, x), x, _vector(centre, x), _vector(scale, x), slope, shift, per_image, dx)
    return dx


class MedianForward(NamedTuple):
    """A batch that is normalised with its medians."""

    y: Tensor
    table: Tensor
    """``(4, C)``: the batch's centre and variance, then the centre and the 1/σ that ``x`` was normalised with."""
    deviation_sum: Tensor
    position: Tensor


def median_forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running: tuple[Tensor, Tensor] | None,
    batch_weight: float,
    eps: float,
) -> MedianForward | None:
    """Take the medians of ``x``, mix them with ``running`` and normalise; return None if a value is not finite.

    What is between the passes is a few numbers per channel, for which torch would take longer than for a pass.
    """
    table = x.new_empty((6, x.shape[1]))
    deviation_sum, position = _per_channel(x, torch.float64), _per_channel(x, torch.int64)
    y = torch.empty_like(x, requires_grad=False)
    mixed_with = (None, None) if running is None or batch_weight == 1.0 else running
    vectors = [None if t is None else _vector(t, x) for t in (weight, bias, *mixed_with)]
    status = _call("median_forward", x, x, *vectors, batch_weight, eps, table, deviation_sum, position, y)
    return None if status & NONFINITE else MedianForward(y, table[:4], deviation_sum, position)


class ImageForward(NamedTuple):
    """A batch that is normalised with its medians over images."""

    y: Tensor | None
    table: Tensor
    """As ``MedianForward``'s; the last two rows have no meaning where ``y`` is None."""
    deviation_sum: Tensor
    selected: Tensor
    """``(6, C)``: the two images in the middle, for the centre, the variance and the MAD."""
    moments: Tensor
    """``(2, B, C)``: each image's own mean and variance."""
    slopes: Tensor
    """``(2, C)``: the derivative of the squared MAD, for the two images that it is taken from."""


def image_forward(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    running: tuple[Tensor, Tensor] | None = None,
    batch_weight: float = 1.0,
    eps: float = 0.0,
    *,
    statistics_only: bool = False,
) -> ImageForward | None:
    """Take medians over images, mix them with ``running`` and normalise; return None if a value is not finite.

    The lower and the upper of the two middle values have the images that a stable sort puts there.
    """
    images, channels = x.shape[:2]
    table, slopes, moments = (x.new_empty(s) for s in ((6, channels), (2, channels), (2, images, channels)))
    deviation_sum, selected = _per_channel(x, torch.float64), torch.empty((6, channels), dtype=torch.int64)
    y = None if statistics_only else torch.empty_like(x, requires_grad=False)
    mixed_with = (None, None) if running is None or batch_weight == 1.0 else running
    vectors = [None if t is None else _vector(t, x) for t in (weight, bias, *mixed_with)]
    results = (table, deviation_sum, selected, moments, slopes, y)
    status = _call("image_forward", x, x, *vectors, batch_weight, eps, *results)
    if status & NONFINITE:
        return None
    return ImageForward(y, table[:4], deviation_sum, selected, moments, slopes)


def image_backward(
    g: Tensor,
    x: Tensor,
    used_centre: Tensor,
    centre: Tensor,
    inverse_std: Tensor,
    weight: Tensor | None,
    selected: Tensor,
    slopes: Tensor,
    image_means: Tensor,
    batch_weight: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of input, weight and bias for medians over images, as ``image_forward`` returns them."""
    channels = x.shape[1]
    table, sums = x.new_empty((3, channels)), torch.empty((2, channels), dtype=torch.float64)
    coefficients, dx = x.new_zeros((2, *x.shape[:2])), torch.empty_like(x, requires_grad=False)
    vectors = [None if t is None else _vector(t, x) for t in (used_centre, centre, inverse_std, weight)]
    sources = (selected.contiguous(), slopes.contiguous(), _table(image_means, x))
    _call("image_backward", x, _like(g, x), x, *vectors, *sources, batch_weight, sums, table, coefficients, dx)
    return dx, table[0], table[1]


def channel_backward(
    g: Tensor,
    x: Tensor,
    used_centre: Tensor,
    centre: Tensor,
    inverse_std: Tensor,
    weight: Tensor | None,
    deviation_sum: Tensor,
    position: Tensor | None,
    batch_weight: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of input, weight and bias where the variance is the mean of ``(x − centre)²``.

    The gradient of the centre goes to the element at ``position`` or, without one, to all elements alike, as a mean's.
    """
    table, sums = x.new_empty((5, x.shape[1])), torch.empty((2, x.shape[1]), dtype=torch.float64)
    dx = torch.empty_like(x, requires_grad=False)
    vectors = [None if t is None else _vector(t, x) for t in (used_centre, centre, inverse_std, weight)]
    per_channel = (*vectors, deviation_sum, position)
    _call("channel_backward", x, _like(g, x), x, *per_channel, batch_weight, sums, table, dx)
    return dx, table[0], table[1]


def _call(name: str, activation: Tensor, *arguments: Tensor | float | None) -> int:
    """Call ``medbn_<name>`` for an activation of this layout; return its status."""
    library, why = load()
    if library is None:
        raise RuntimeError(f"the C kernels are not available: {why}.")
    last = _is_last(activation) if _is_plain(activation) else None
    if last is None:
        raise ValueError(
            "expected a dense float32 CPU tensor (B, C, *), contiguous or channels last; got"
            f" {activation.dtype} on {activation.device} of shape {tuple(activation.shape)} and strides"
            f" {activation.stride()}."
        )
    images, channels = activation.shape[:2]
    layout = Layout(images, channels, activation.numel() // (images * channels), last, torch.get_num_threads())
    values = [t.data_ptr() if isinstance(t, Tensor) else t for t in arguments]
    status = int(getattr(library, f"medbn_{name}")(selected_instruction_set(), layout, *values))
    if status & NO_MEMORY:
        raise MemoryError(f"not enough memory for the work space of {name} of shape {tuple(activation.shape)}.")
    return status


def _is_last(x: Tensor) -> bool | None:
    """Return whether channels are innermost in memory; None if ``x`` is neither that nor contiguous."""
    if x.is_contiguous():
        return x.numel() == x.shape[0] * x.shape[1]
    return True if x.movedim(1, -1).is_contiguous() else None


def _like(g: Tensor, x: Tensor) -> Tensor:
    """Return ``g`` as float32 in the memory format of ``x``."""
    if g.shape != x.shape:
        raise ValueError(f"expected a gradient of shape {tuple(x.shape)}, got {tuple(g.shape)}.")
    if supported(g) and (_is_last(g) == _is_last(x)):
        return g
    return torch.empty_like(x, requires_grad=False).copy_(g.detach())


def _per_channel(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(x.shape[1], dtype=dtype)


def _vector(values: Tensor, x: Tensor) -> Tensor:
    return _dense(values, (x.shape[1],))


def _table(values: Tensor, x: Tensor) -> Tensor:
    return _dense(values, tuple(x.shape[:2]))


def _dense(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    if tuple(values.shape) != shape:
        raise ValueError(f"expected shape {shape}, got {tuple(values.shape)}.")
    if values.dtype is torch.float32 and values.device.type == "cpu" and values.is_contiguous() and not values.is_neg():
        return values
    return values.detach().to("cpu", torch.float32).contiguous()
