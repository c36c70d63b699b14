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

A ReLU behind the normalisation, and the addition of a residual before it, take no launch: the kernel that writes the
output applies them, and the kernel that reads g first masks it.

``plans`` puts these steps together, once for each kind of activation; here they meet tensors.
"""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor

from ..saved import Activation, Saved, Spec
from .launch import MASKED
from .layout import WorkspaceSaved
from .plans import BackwardPlan, ForwardPlan, backward_plan, forward_plan
from .tiling import dense, like

Pair = tuple[Tensor, Tensor]


def forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running: Pair | None,
    spec: Spec,
    activation: Activation | None = None,
) -> tuple[Tensor, Saved]:
    """Normalise ``x``, and activate it; return the output and what the backward pass needs."""
    if (dense_x := dense(x)) is not x:
        y, saved = forward(dense_x, weight, bias, running, spec, activation)
        return _copy(y, x), saved
    relu, residual = activation is not None, None if activation is None else activation.residual
    plan = forward_plan(x, weight, bias, running, spec.kernel, True, relu, residual is not None)
    out, saved = _run_forward(plan, x, weight, bias, running, spec, residual)
    assert out is not None
    return out, saved


def statistics(x: Tensor, kernel: str) -> Pair:
    """Return the centre and the variance of each channel over the images that are finite."""
    x = dense(x)
    plan = forward_plan(x, None, None, None, kernel, False)
    _, saved = _run_forward(plan, x, None, None, None, Spec(kernel, 1.0, 0.0))
    return saved.centre, saved.variance


def _run_forward(
    plan: ForwardPlan,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running: Pair | None,
    spec: Spec,
    residual: Tensor | None = None,
) -> tuple[Tensor | None, Saved]:
    """Return the output, if the plan has one, and what is saved."""
    given = x
    if plan.transposes:
        x = x.detach().contiguous()
    y = torch.empty_like(x) if plan.allocates_output else None
    layout = plan.layout
    saved, scratch = layout.allocate("saved", x.device), layout.allocate("scratch", x.device)
    assert saved is not None
    centre, variance = running or (None, None)
    tensors: tuple[Tensor | None, ...] = (x, y, weight, bias, centre, variance, saved, scratch)
    if residual is not None:
        tensors += (like(residual, x),)
    plan.program.run(x.get_device(), tensors, spec.eps, spec.batch_weight)
    if plan.transposes:
        assert y is not None
        y = _copy(y, given)
    return y, WorkspaceSaved(saved, layout)


def backward(g: Tensor, x: Tensor, weight: Tensor | None, saved: Saved, spec: Spec) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of input, weight and bias; the last two in float32."""
    dx, d_weight, d_bias, _ = _differentiate(g, x, None, False, weight, saved, spec)
    return dx, d_weight, d_bias


def activated_backward(
    g: Tensor, y: Tensor, x: Tensor, weight: Tensor | None, saved: Saved, spec: Spec, residual: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the gradients of input, weight, bias and, if there was a ``residual``, residual; ``y`` is the output."""
    return _differentiate(g, x, y, residual, weight, saved, spec)


def _differentiate(
    g: Tensor, x: Tensor, y: Tensor | None, residual: bool, weight: Tensor | None, saved: Saved, spec: Spec
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    if (dense_x := dense(x)) is not x:
        dx, d_weight, d_bias, masked = _differentiate(g, dense_x, y, residual, weight, saved, spec)
        return _copy(dx, x), d_weight, d_bias, None if masked is None else _copy(masked, x)
    g, relu = like(g, x), y is not None
    plan = backward_plan(g, x, weight, spec.kernel, spec.backward == "mean", relu, residual)
    dx = torch.empty_like(x)
    masked = torch.empty_like(g) if plan.masks else None
    affine = torch.empty(2, x.shape[1], dtype=torch.float32, device=x.device)
    scratch = plan.layout.allocate("scratch", x.device)
    if isinstance(saved, WorkspaceSaved):
        tensors: tuple[Tensor | None, ...] = (x, g, dx, weight, affine, saved.buffer, scratch)
        if y is not None:
            tensors += (like(y, x), masked)
        plan.program.run(x.get_device(), tensors, spec.eps, spec.batch_weight)
    else:
        named = {"x": x, "g": g, "dx": dx, "weight": weight, "y": None if y is None else like(y, x), MASKED: masked}
        _run_separate(plan, named, affine, scratch, saved, spec)
    d_weight, d_bias = affine.unbind()
    return dx, d_weight, d_bias, masked if residual else None


def _copy(result: Tensor, x: Tensor) -> Tensor:
    """Return a result for a copy of ``x`` in the memory format of ``x``."""
    with torch.no_grad():
        return torch.empty_like(x, dtype=result.dtype).copy_(result)


def _run_separate(
    plan: BackwardPlan,
    named: dict[str, Tensor | None],
    affine: Tensor,
    scratch: Tensor | None,
    saved: Saved,
    spec: Spec,
) -> None:
    """Run a backward pass where what was saved is in tensors of its own, as in a compiled program."""
    for name, place in plan.layout.places.items():
        if place.buffer != "saved":
            buffer = affine.view(-1) if place.buffer == "affine" else scratch
            named[name] = None if buffer is None else place.view(buffer)
    named |= {field.name: getattr(saved, field.name) for field in fields(Saved)}
    plan.program.run_separate(affine.get_device(), named, spec.eps, spec.batch_weight)
