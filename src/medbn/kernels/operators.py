"""The kernels as operators of torch: what ``torch.compile`` puts into a program in place of the functions.

``torch.ops.medbn.norm`` and ``norm_backward`` are ``dispatch.forward`` and ``dispatch.backward``, which a compiler does
not trace into: it knows their shapes, dtypes and strides, and that one is the gradient of the other. In eager mode an
operator would only cost time; there, layers call the functions directly.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import c, dispatch
from .saved import Saved, Spec, shapes


def norm_operator(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running: tuple[Tensor, Tensor] | None, spec: Spec
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Normalise ``x``; return the output, the batch's centre and variance, and the number of its finite images."""
    mean = spec.backward == "mean"
    y, table, *_, counted = torch.ops.medbn.norm(x, weight, bias, *(running or (None, None)), *spec[:3], mean)
    return y, table[0], table[1], counted[0]


# The outputs of an operator may share no memory, not even with each other, and all must exist: what is per channel is
# stacked into one table, and what a kernel does not save is empty.

_SAVED = "Tensor table, Tensor deviation, Tensor chosen, Tensor means, Tensor slopes, Tensor finite, Tensor counted"
_library: Any = torch.library.Library("medbn", "DEF")  # type: ignore[no-untyped-call]
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
_library.define(
    "norm(Tensor x, Tensor? weight, Tensor? bias, Tensor? held_centre, Tensor? held_variance, str kind, float share,"
    f" float eps, bool mean) -> (Tensor y, {_SAVED})",
    tags=_TAGS,
)
_library.define(
    f"norm_backward(Tensor g, Tensor x, Tensor? weight, {_SAVED}, str kind, float share, float eps, bool mean)"
    " -> (Tensor dx, Tensor affine)",
    tags=_TAGS,
)


def _norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_centre: Tensor | None,
    running_variance: Tensor | None,
    *spec: Any,
) -> tuple[Tensor, ...]:
    """Run ``norm``: ``dispatch.forward`` for an input of any strides."""
    running = None if running_centre is None or running_variance is None else (running_centre, running_variance)
    dense = _dense(x)
    y, saved = dispatch.forward(dense, weight, bias, running, _spec(*spec))
    if dense is not x:
        y = torch.empty_like(x).copy_(y)
    table = torch.stack((saved.centre, saved.variance, saved.used_centre, saved.inverse_std))
    deviation, selected, finite, counted = saved.deviation_sum, saved.selected, saved.finite, saved.finite_count
    means, slopes = (torch.empty(0, device=x.device) if t is None else t for t in (saved.image_means, saved.slopes))
    if finite is None or counted is None:
        finite = torch.ones(len(x), dtype=torch.int32)
        counted = torch.full((1,), len(x), dtype=torch.int32)
    others = (deviation, selected, means, slopes, finite, counted)
    return y, table, *(t.clone() if x.is_cuda else t for t in others)  # on a GPU they are views of one buffer


def _norm_backward(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    table: Tensor,
    deviation: Tensor,
    selected: Tensor,
    means: Tensor,
    slopes: Tensor,
    finite: Tensor,
    counted: Tensor,
    *spec: Any,
) -> tuple[Tensor, Tensor]:
    """Run ``norm_backward``: ``dispatch.backward`` for an input of any strides."""
    all_finite = not x.is_cuda and int(counted) == len(x)
    centre, variance, used_centre, inverse_std = table.unbind()
    saved = Saved(
        centre,
        variance,
        used_centre,
        inverse_std,
        deviation,
        selected,
        image_means=means if means.numel() else None,
        slopes=slopes if slopes.numel() else None,
        finite=None if all_finite else finite,
        finite_count=None if all_finite else counted,
    )
    dense = _dense(x)
    dx, d_weight, d_bias = dispatch.backward(g, dense, weight, saved, _spec(*spec))
    return dx if dense is x else torch.empty_like(x).copy_(dx), torch.stack((d_weight, d_bias))


def _spec(kernel: str, batch_weight: float, eps: float, mean: bool) -> Spec:
    return Spec(kernel, batch_weight, eps, "mean" if mean else "own")


def _dense(x: Tensor) -> Tensor:
    """Return ``x`` in strides that the kernels can read: a compiler may have chosen others."""
    return x if x.is_cuda else c.dense(x)


def _norm_shapes(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_centre: Tensor | None,
    running_variance: Tensor | None,
    kernel: str,
    *_: Any,
) -> tuple[Tensor, ...]:
    """Return tensors of the shapes, dtypes and strides that ``norm`` returns."""
    images, channels = x.shape[:2]
    selected, means, slopes = shapes(kernel, images, channels)

    def make(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=x.device)

    return (
        torch.empty_like(x),
        make(4, channels),
        make(channels, dtype=torch.float64),
        make(*selected, dtype=torch.int32 if x.is_cuda else torch.int64),
        make(*means),
        make(*slopes),
        make(images, dtype=torch.int32),
        make(1, dtype=torch.int32),
    )


def _backward_shapes(g: Tensor, x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    """Return tensors of the shapes, dtypes and strides that ``norm_backward`` returns."""
    return torch.empty_like(x), torch.empty((2, x.shape[1]), dtype=torch.float32, device=x.device)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, _, _, *spec = inputs
    _, *saved = output
    ctx.mark_non_differentiable(*saved)
    ctx.save_for_backward(x, weight, *saved)
    ctx.spec, ctx.bias_dtype = spec, None if bias is None else bias.dtype


def _differentiate(ctx: Any, g: Tensor, *_: Any) -> tuple[Any, ...]:
    x, weight, *saved = ctx.saved_tensors
    dx, affine = torch.ops.medbn.norm_backward(g, x, weight, *saved, *ctx.spec)
    _, weight_needed, bias_needed = ctx.needs_input_grad[:3]
    d_weight = affine[0].to(weight.dtype) if weight_needed else None
    d_bias = affine[1].to(ctx.bias_dtype) if bias_needed else None
    return dx, d_weight, d_bias, *[None] * 6


def _refuse_second_derivative(ctx: Any, *_: Any) -> Any:
    raise NotImplementedError(
        "torch.ops.medbn.norm has no second derivative; use medbn's layers or medbn.functional.robust_norm without"
        " torch.compile."
    )


for _name, _function, _shapes in (("norm", _norm, _norm_shapes), ("norm_backward", _norm_backward, _backward_shapes)):
    for _device in ("CPU", "CUDA"):
        _library.impl(_name, _function, _device)
    torch.library.register_fake(f"medbn::{_name}", _shapes, lib=_library)
torch.library.register_autograd("medbn::norm", _differentiate, setup_context=_save_for_backward, lib=_library)
torch.library.register_autograd("medbn::norm_backward", _refuse_second_derivative, lib=_library)
