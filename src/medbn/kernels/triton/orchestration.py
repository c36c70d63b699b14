"""Robust normalisation on a GPU: which Triton kernels run in which order.

The median of a channel that one program holds in registers takes one kernel: select, mix, normalise. For a larger one,

1. ``bracket`` takes two values from a sample that very probably enclose the median,
2. ``collect`` reads everything: it counts what is below, collects the few values between, and sums moments,
3. ``finish`` selects the median among the collected values or, where the bracket missed it or an image is not finite,
   in the whole channel; the host does not wait for that decision,
4. ``normalise_all`` reads everything once more, normalises, and finds where the median first occurs,

so that a forward pass is two reads and one write, as BatchNorm's is. The MAD is the median of deviations: steps 1 to 3
twice, the second time with |x − median| for x. Medians over images take one read for the moments of images.

Backward, ``reduce`` reads g and x, and ``combine`` reads both and writes the gradient; small channels take ``combine``
alone. For medians over images, ``image_gradient`` writes w · r · g before ``selected_image_gradient`` visits the six
images that a channel's statistics come from.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..reference import MAD_FACTORS
from ..saved import Saved, Spec, shapes
from . import launch, tiling
from .tiling import Shape, dense, like


def forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running: tuple[Tensor, Tensor] | None, spec: Spec
) -> tuple[Tensor, Saved]:
    """Normalise ``x``; return the output and what the backward pass needs."""
    original, x = x, dense(x)
    shape = Shape.of(x)
    y = torch.empty_like(x)
    small = spec.kernel == "median" and shape.small
    # Kernels mark the images that are not finite. ``bracket`` initialises the marks; without it, torch does.
    saved = _allocate(x, spec.kernel, set_finite=small or spec.kernel == "image_median")
    if small:
        flat = x.contiguous()  # so little is copied faster than read with strides
        out = torch.empty_like(flat) if shape.last else y
        contiguous = shape._replace(last=False)
        launch.normalise_small_channels(flat, out, weight, bias, running, saved, contiguous, spec)
        y = y.copy_(out) if shape.last else y
    else:
        if spec.kernel == "image_median":
            launch.image_moments(x, saved, shape)
            launch.image_statistics(running, saved, shape, spec)
        elif spec.kernel == "median":
            _select_median(x, False, running, saved, shape, spec)
        else:
            _select_median(x, False, None, saved, shape, spec)
            _select_median(x, True, running, saved, shape, spec)
        launch.normalise_all(x, y, weight, bias, saved, shape, spec.kernel)
    return y if x is original else torch.empty_like(original).copy_(y), saved


def backward(g: Tensor, x: Tensor, weight: Tensor | None, saved: Saved, spec: Spec) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of input, weight and bias; the last two in float32."""
    original, x = x, dense(x)
    shape = Shape.of(x)
    g = like(g, x)
    dx = torch.empty_like(x)
    d_weight, d_bias = torch.empty(2, shape.channels, device=x.device, dtype=torch.float32).unbind()
    mean = spec.backward == "mean"
    if spec.kernel == "image_median" and not mean:
        sums = _sum_gradients(g, x, saved, shape)
        launch.image_gradient(g, x, dx, weight, saved, sums, d_weight, d_bias, shape, spec.batch_weight)
        if not shape.last:
            launch.selected_image_gradient(g, x, dx, weight, saved, d_weight, d_bias, shape, spec.batch_weight)
    else:
        mad = spec.kernel in MAD_FACTORS and not mean
        factor = MAD_FACTORS[spec.kernel] if mad else 0.0
        channel_sums = None if shape.whole else _sum_gradients(g, x, saved, shape)
        launch.combine(
            g, x, dx, weight, saved, channel_sums, d_weight, d_bias, shape, spec.batch_weight, mean, mad, factor
        )
    return dx if x is original else torch.empty_like(original).copy_(dx), d_weight, d_bias


def statistics(x: Tensor, kernel: str) -> tuple[Tensor, Tensor]:
    """Return the centre and the variance of each channel over the images that are finite."""
    _, saved = forward(x, None, None, None, Spec(kernel, 1.0, 0.0))
    return saved.centre, saved.variance


def _allocate(x: Tensor, kernel: str, set_finite: bool) -> Saved:
    """Return uninitialised tensors for what a forward pass computes; ``set_finite`` marks all images as finite."""
    images, channels = x.shape[:2]

    def empty(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(size, device=x.device, dtype=dtype)

    selected, means, slopes = shapes(kernel, images, channels)
    finite, finite_count = empty(images, dtype=torch.int32), empty(1, dtype=torch.int32)
    if set_finite:
        finite.fill_(1)
        finite_count.fill_(images)
    centre, variance, used_centre, inverse_std = empty(4, channels).unbind()
    saved = Saved(
        centre,
        variance,
        used_centre,
        inverse_std,
        deviation_sum=empty(channels, dtype=torch.float64),
        selected=empty(*selected, dtype=torch.int32),
        slopes=None if kernel == "median" else empty(*slopes),
        finite=finite,
        finite_count=finite_count,
    )
    if kernel != "image_median":
        return saved
    image_means, image_variances = empty(2, *means).unbind()
    return saved._replace(image_means=image_means, image_variances=image_variances)


def _select_median(
    x: Tensor, deviations: bool, running: tuple[Tensor, Tensor] | None, saved: Saved, shape: Shape, spec: Spec
) -> None:
    """Select the median of each channel, or that of |x − median| for ``deviations``, and mix with ``running``."""
    buffers = launch.SurveyBuffers(x, shape)
    launch.bracket(x, deviations, saved, buffers, shape)
    launch.collect(x, deviations, saved, buffers)
    launch.finish(x, deviations, MAD_FACTORS.get(spec.kernel, 0.0), running, saved, buffers, shape, spec)


def _sum_gradients(g: Tensor, x: Tensor, saved: Saved, shape: Shape) -> Tensor:
    """Return the sums of g and of g · (x − used centre), in so few parts that every program can add them up."""
    sums = launch.reduce(g, x, saved, shape)
    return sums if sums.shape[1] <= tiling.PARTS_PER_PROGRAM else launch.add_parts(sums)
