"""The fast paths: statistics, normalisation and its gradient in as few passes over the activation as there can be.

One computation in two places: Triton on a GPU (``gpu``), C on a CPU (``native``). Both give the exact median, and the
gradient in closed form: with y = w · (x − c) · r + b, r = 1/√(v + eps), and statistics that a share of which is the
batch's,

    dx = w · r · g  +  slope · (x − centre) + shift  +  something at the few elements that the medians are made of.

Whatever these cannot do (masks, other dtypes, other estimators, tracing, a second derivative) the reference path does.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from .._names import unknown
from . import native, reference

PATHS = ("auto", "reference", "c", "triton")
MAD_TO_SIGMA = 1.4826
KINDS = {"c": ("median", "image_median"), "triton": ("median", "image_median")}


class Fused(NamedTuple):
    """A normalised batch, and the statistics that the batch has."""

    y: Tensor
    centre: Tensor
    variance: Tensor
    finite: Tensor | None
    counted: Tensor | None


class Wanted(NamedTuple):
    """What is to be computed, beside the tensors."""

    kind: str
    """The estimator's name."""
    share: float
    """The weight of the batch's statistics; the held ones have the rest."""
    eps: float
    mean: bool
    """Whether gradients are those of the mean's statistics."""


def selected(x: Tensor, estimator: str = "median") -> str:
    """Which path a layer takes for this input: ``"c"``, ``"triton"`` or ``"reference"``.

    The environment variable ``MEDBN_KERNELS`` forces one of these; what is forced and cannot be done is an error.

    >>> selected(torch.zeros(2, 3, dtype=torch.float64))
    'reference'
    """
    forced = os.environ.get("MEDBN_KERNELS", "auto")
    if forced not in PATHS:
        raise unknown("MEDBN_KERNELS", forced, PATHS)
    if forced == "reference" or reference.traced() or type(x) not in (Tensor, torch.nn.Parameter):
        return "reference"
    path = "triton" if x.is_cuda else "c"
    able = estimator in KINDS[path] and (_gpu_takes(x) if x.is_cuda else native.available() and native.supported(x))
    if not able and forced in ("c", "triton") and estimator in KINDS[forced] and (forced == "triton") == x.is_cuda:
        why = native.reason() if forced == "c" else "triton does not load"
        raise RuntimeError(
            f"MEDBN_KERNELS={forced} cannot be used for {x.dtype} on {x.device}: {why or 'unsupported'}."
        )
    return path if able and forced in ("auto", path) else "reference"


def norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    held: tuple[Tensor, Tensor] | None,
    wanted: Wanted,
    again: Callable[[Tensor, Tensor | None, Tensor | None], Tensor],
) -> Fused | None:
    """Normalise ``x`` on a fast path; None where only the reference path can.

    ``again`` computes the same by the reference path, for second derivatives. Held statistics have no gradients here.
    """
    path = selected(x, wanted.kind)
    if path == "reference":
        return None
    with torch.no_grad():
        w, b = (None if t is None else t.detach() for t in (weight, bias))
        made = (_on_gpu if path == "triton" else _on_cpu)(x.detach(), w, b, held, wanted)
    if made is None:
        return None
    found, backward = made
    follow = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias))
    if not follow:
        return found
    y = _Attached.apply(x, weight, bias, found.y, backward, again)  # type: ignore[no-untyped-call]
    return found._replace(y=y)


class _Attached(Function):
    """An output that has been computed, as a function of what it was computed from."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, y: Tensor, backward: Any, again: Any
    ) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.fast, ctx.again = backward, again
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (g,) = grads
        x, weight, bias = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        if torch.is_grad_enabled():  # someone will differentiate this backward pass
            inputs = [t for t, wants in zip((x, weight, bias), wanted, strict=False) if wants]
            with torch.enable_grad():
                slopes = iter(torch.autograd.grad(ctx.again(x, weight, bias), inputs, g, create_graph=True))
            found = [next(slopes) if wants else None for wants in wanted[:3]]
        else:
            d_x, d_weight, d_bias = ctx.fast(g, x)
            parameters = zip((d_weight, d_bias), (weight, bias), wanted[1:3], strict=True)
            found = [d_x, *(d.to(t.dtype) if wants else None for d, t, wants in parameters)]
        return *found, None, None, None


# --- on a GPU ---------------------------------------------------------------------------------------------------------


@cache
def _gpu() -> ModuleType | None:
    try:
        from . import gpu
    except Exception as error:  # whatever keeps Triton from loading, the reference path runs without it
        warnings.warn(f"Triton does not load ({error}); medbn's GPU kernels are off.", stacklevel=2)
        return None
    return gpu


def _gpu_takes(x: Tensor) -> bool:
    module = _gpu()
    return module is not None and bool(module.supported(x))


def _on_gpu(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, held: tuple[Tensor, Tensor] | None, wanted: Wanted
) -> tuple[Fused, Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]]:
    module = _gpu()
    assert module is not None
    given = (weight, bias, held, wanted.share, wanted.eps)
    dense = x.contiguous()
    images: tuple[Any, ...] = ()
    if wanted.kind == "image_median":
        y, found, used, scale, kept = module.image_forward(dense, *given)
        images = () if wanted.mean else (kept,)
    else:
        y, found, used, scale = module.forward(dense, *given)
    if dense is not x:
        y = torch.empty_like(x).copy_(y)
    fused = Fused(y, found.centre, found.variance, found.finite.bool(), found.counted[0])

    def backward(g: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        kept = (x.detach().contiguous(), weight, found, used, scale, wanted.share)
        if images:
            dx, d_weight, d_bias = module.image_backward(g.contiguous(), *kept, *images)
        else:
            dx, d_weight, d_bias = module.backward(g.contiguous(), *kept, wanted.mean)
        return dx if x.is_contiguous() else torch.empty_like(x).copy_(dx), d_weight, d_bias

    return fused, backward


# --- on a CPU ---------------------------------------------------------------------------------------------------------


class _Medians(NamedTuple):
    """Statistics, and how their gradients reach the activation: per channel or per image, and at single elements."""

    centre: Tensor
    variance: Tensor
    deviation: Tensor
    """The sum of x − centre, float64."""
    spread: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]]]]
    """From the gradients of centre and variance to a slope and a shift, and (index, value) pairs to add."""


def _on_cpu(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, held: tuple[Tensor, Tensor] | None, wanted: Wanted
) -> tuple[Fused, Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]] | None:
    medians = _over_images(x) if wanted.kind == "image_median" else _over_values(x)
    if medians is None:
        return None
    centre, variance, deviation, spread = medians
    used, used_variance, share = centre, variance, wanted.share
    if held is not None and share != 1.0:
        old = [s.to(torch.float32) for s in held]
        used, used_variance = (share * s + (1.0 - share) * h for s, h in zip((centre, variance), old, strict=True))
    r = torch.rsqrt(used_variance + wanted.eps)
    w = torch.ones_like(r) if weight is None else weight.float()
    y = native.normalise(x, used, r * w, torch.zeros_like(r) if bias is None else bias.float())

    def backward(g: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = x.detach()
        sum_g, sum_gx = native.reduce(g, x, used)
        wide, rate = w.double(), r.double()
        gain = rate * sum_gx
        d_centre, d_variance = -share * wide * rate * sum_g, -0.5 * share * wide * rate.square() * gain
        count = x.numel() // x.shape[1]
        places: list[tuple[Tensor, Tensor]] = []
        if wanted.mean:
            slope = 2.0 * d_variance / count
            shift = d_centre / count - slope * deviation / count
        else:
            slope, shift, places = spread(d_centre, d_variance)
        dx = native.combine(g, x, centre, (wide * rate).float(), slope.float(), shift.float())
        planes = reference._planes(dx)
        channels, size = torch.arange(planes.shape[1]), planes.shape[2]
        for index, value in places:
            planes[index // size, channels, index % size] += value.float()
        return dx, gain.float(), sum_g.float()

    return Fused(y, centre, variance, None, None), backward


def _over_values(x: Tensor) -> _Medians | None:
    found = native.median_statistics(x)
    if not found.finite:
        return None
    count = x.numel() // x.shape[1]

    def spread(d_centre: Tensor, d_variance: Tensor) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]]]:
        slope = 2.0 * d_variance / count
        return slope, torch.zeros_like(slope), [(found.index, d_centre - slope * found.deviation)]

    return _Medians(found.centre, found.variance, found.deviation, spread)


def _over_images(x: Tensor) -> _Medians | None:
    means, withins = native.image_moments(x)
    if not bool(means.isfinite().all() and withins.isfinite().all()):
        return None
    size = x.numel() // means.numel()
    centre, *centres = _middle(means)
    inner, *inners = _middle(withins)
    away = means - centre
    mad, *mads = _middle(away.abs())
    channels = torch.arange(means.shape[1])
    # Half of the slope of (1.4826 · MAD)², for each of the two images in the middle of the deviations.
    slopes = [MAD_TO_SIGMA**2 * mad * torch.sign(away[image, channels]) for image in mads]

    def spread(d_centre: Tensor, d_variance: Tensor) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]]]:
        d_means, d_withins = torch.zeros_like(means), torch.zeros_like(means)
        for image, slope in zip(mads, slopes, strict=True):
            up = d_variance * slope
            d_means[image, channels] += up.float()
            d_centre = d_centre - up
        for image in centres:
            d_means[image, channels] += 0.5 * d_centre.float()
        for image in inners:
            d_withins[image, channels] += 0.5 * d_variance.float()
        slope = 2.0 * d_withins / size
        return slope, d_means / size - slope * away, []

    variance = inner + (MAD_TO_SIGMA * mad).square()
    return _Medians(centre, variance, size * away.double().sum(dim=0), spread)


def _middle(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The median of ``(B, C)`` over images, and the two images that it is the mean of."""
    low = native.median_statistics(values)
    first = _stable(values, low.centre, low.index, (len(values) - 1) // 2)
    if len(values) % 2:
        return low.centre, first, first
    high = native.median_statistics(-values)
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
