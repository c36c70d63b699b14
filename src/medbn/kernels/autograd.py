"""The fast paths as differentiable functions: directly in eager mode, as operators of torch where it compiles.

``torch.ops.medbn.norm`` and ``norm_backward`` are what a compiler sees of ``dispatch.forward`` and
``dispatch.backward``: two calls that it does not look into, of which it knows shapes, dtypes, strides and each other as
gradient. In eager mode an operator would do nothing but cost time, so there an autograd Function holds the same two
functions together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from . import c, dispatch, smooth
from .saved import Saved, Spec, shapes


class Fused(NamedTuple):
    """A normalised batch, and the statistics that the batch has."""

    y: Tensor
    centre: Tensor
    variance: Tensor
    finite: Tensor | None
    """``(B,)`` mask of the images that are not isolated; None when none is."""
    counted: Tensor | None
    """How many these are; None for all."""


def norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    held: tuple[Tensor, Tensor] | None,
    spec: Spec,
    again: Callable[[Tensor, Tensor | None, Tensor | None], Tensor],
) -> Fused | None:
    """Normalise ``x`` on a fast path; None where only the reference path can.

    ``again`` computes the same by the reference path, for second derivatives. Held statistics have no gradients here.
    """
    if dispatch.selected(x, spec.kernel) == "reference" or (
        spec.backward == "smooth" and torch.compiler.is_compiling()
    ):
        return None
    if torch.compiler.is_compiling():
        mean = spec.backward == "mean"
        y, table, *_, finite, counted = torch.ops.medbn.norm(x, weight, bias, *(held or (None, None)), *spec[:3], mean)
        return Fused(y, table[0], table[1], finite.bool(), counted[0])
    with torch.no_grad():
        w, b = (None if t is None else t.detach() for t in (weight, bias))
        y, saved = dispatch.forward(x.detach(), w, b, held, spec)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)):
        y = _Attached.apply(x, weight, bias, [y], saved, spec, again)  # type: ignore[no-untyped-call]
    if saved.finite is None or saved.finite_count is None:
        return Fused(y, saved.centre, saved.variance, None, None)
    return Fused(y, saved.centre, saved.variance, saved.finite.bool(), saved.finite_count[0])


class _Attached(Function):
    """An output that has been computed, as a function of what it was computed from.

    It comes in a list, where autograd does not see it: what is given and returned would be a view, and a ReLU in place,
    as models have it behind their normalisation, may not write to that.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        computed: list[Tensor],
        saved: Saved,
        spec: Spec,
        again: Any,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.saved, ctx.spec, ctx.again = saved, spec, again
        return computed[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (g,) = grads
        x, weight, bias = ctx.saved_tensors
        needs = ctx.needs_input_grad
        if torch.is_grad_enabled():  # someone will differentiate this backward pass
            inputs = [t for t, wants in zip((x, weight, bias), needs, strict=False) if wants]
            with torch.enable_grad():
                slopes = iter(torch.autograd.grad(ctx.again(x, weight, bias), inputs, g, create_graph=True))
            saved = [next(slopes) if wants else None for wants in needs[:3]]
        else:
            w = None if weight is None else weight.detach()
            backward = smooth.backward if ctx.spec.backward == "smooth" else dispatch.backward
            d_x, d_weight, d_bias = backward(g, x.detach(), w, ctx.saved, ctx.spec)
            parameters = zip((d_weight, d_bias), (weight, bias), needs[1:3], strict=True)
            saved = [d_x, *(d.to(t.dtype) if wants else None for d, t, wants in parameters)]
        return *saved, None, None, None, None


# --- operators --------------------------------------------------------------------------------------------------------
# Their outputs may share no memory, with each other either, and must all be there: what is per channel goes into one
# table, and what a path does not have is empty.

_FOUND = "Tensor table, Tensor deviation, Tensor chosen, Tensor means, Tensor slopes, Tensor finite, Tensor counted"
_library: Any = torch.library.Library("medbn", "DEF")  # type: ignore[no-untyped-call]
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
_library.define(
    "norm(Tensor x, Tensor? weight, Tensor? bias, Tensor? held_centre, Tensor? held_variance, str kind, float share,"
    f" float eps, bool mean) -> (Tensor y, {_FOUND})",
    tags=_TAGS,
)
_library.define(
    f"norm_backward(Tensor g, Tensor x, Tensor? weight, {_FOUND}, str kind, float share, float eps, bool mean)"
    " -> (Tensor dx, Tensor affine)",
    tags=_TAGS,
)


def _norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    held_centre: Tensor | None,
    held_variance: Tensor | None,
    *spec: Any,
) -> tuple[Tensor, ...]:
    held = None if held_centre is None or held_variance is None else (held_centre, held_variance)
    dense = _dense(x)
    y, saved = dispatch.forward(dense, weight, bias, held, _spec(*spec))
    if dense is not x:
        y = torch.empty_like(x).copy_(y)
    table = torch.stack((saved.centre, saved.variance, saved.used_centre, saved.inverse_std))
    means, slopes, finite, counted = saved[6:10]
    if means is None:
        means = torch.empty(0, device=x.device)
    elif x.is_cuda:
        means = means.clone()  # a part of something larger
    if slopes is None:
        slopes = torch.empty(0, device=x.device)
    if finite is None or counted is None:
        finite = torch.ones(len(x), dtype=torch.int32)
        counted = torch.full((1,), len(x), dtype=torch.int32)
    return y, table, saved.deviation_sum, saved.selected, means, slopes, finite, counted


def _norm_backward(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    table: Tensor,
    deviation: Tensor,
    chosen: Tensor,
    means: Tensor,
    slopes: Tensor,
    finite: Tensor,
    counted: Tensor,
    *spec: Any,
) -> tuple[Tensor, Tensor]:
    images = (means if means.numel() else None, slopes if slopes.numel() else None)
    masks = (None, None) if not x.is_cuda and int(counted) == len(x) else (finite, counted)
    centre, variance, used, scale = table.unbind()
    saved = Saved(centre, variance, used, scale, deviation, chosen, *images, *masks)
    dense = _dense(x)
    dx, d_weight, d_bias = dispatch.backward(g, dense, weight, saved, _spec(*spec))
    return dx if dense is x else torch.empty_like(x).copy_(dx), torch.stack((d_weight, d_bias))


def _spec(kernel: str, batch_weight: float, eps: float, mean: bool) -> Spec:
    return Spec(kernel, batch_weight, eps, "mean" if mean else "own")


def _dense(x: Tensor) -> Tensor:
    """Strides that the kernels take; while a program is compiled nobody asks for these."""
    return x if x.is_cuda else c.dense(x)


def _norm_shapes(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    held_centre: Tensor | None,
    held_variance: Tensor | None,
    kind: str,
    *_: Any,
) -> tuple[Tensor, ...]:
    images, channels = x.shape[:2]
    chosen, means, slopes = shapes(kind, images, channels)

    def make(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=x.device)

    return (
        torch.empty_like(x),
        make(4, channels),
        make(channels, dtype=torch.float64),
        make(*chosen, dtype=torch.int32 if x.is_cuda else torch.int64),
        make(*means),
        make(*slopes),
        make(images, dtype=torch.int32),
        make(1, dtype=torch.int32),
    )


def _backward_shapes(g: Tensor, x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty((2, x.shape[1]), dtype=torch.float32, device=x.device)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, _, _, *spec = inputs
    _, *saved = output
    ctx.mark_non_differentiable(*saved)
    ctx.save_for_backward(x, weight, *saved)
    ctx.spec, ctx.bias = spec, None if bias is None else bias.dtype


def _slopes(ctx: Any, g: Tensor, *_: Any) -> tuple[Any, ...]:
    x, weight, *saved = ctx.saved_tensors
    dx, affine = torch.ops.medbn.norm_backward(g, x, weight, *saved, *ctx.spec)
    _, weighs, biases = ctx.needs_input_grad[:3]
    d_weight = affine[0].to(weight.dtype) if weighs else None
    d_bias = affine[1].to(ctx.bias) if biases else None
    return dx, d_weight, d_bias, *[None] * 6


def _no_slopes(ctx: Any, *_: Any) -> Any:
    raise NotImplementedError(
        "torch.ops.medbn.norm has no second derivative; use medbn's layers or medbn.functional.robust_norm without"
        " torch.compile."
    )


for _name, _function, _shapes in (("norm", _norm, _norm_shapes), ("norm_backward", _norm_backward, _backward_shapes)):
    for _device in ("CPU", "CUDA"):
        _library.impl(_name, _function, _device)
    torch.library.register_fake(f"medbn::{_name}", _shapes, lib=_library)
torch.library.register_autograd("medbn::norm", _slopes, setup_context=_keep, lib=_library)
torch.library.register_autograd("medbn::norm_backward", _no_slopes, lib=_library)
