"""One robust layer with the ReLU behind it, and with what is added before that: one kernel where there is one.

There is none on a CPU, for BatchNorm itself, and where somebody looks at what is between layer and ReLU, or changes it:
hooks, masks, observers of outputs. There the layer is called, and the operations of the original forward follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from .. import kernels
from .._few_values import has_many_values
from .._normalise import KernelNormalised, choose_spec, compose, needs_function
from ..layers import RobustBatchNorm

_HOOKS = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
_OF_ALL_MODULES: list[Any] = [getattr(nn.modules.module, f"_global_{kind}") for kind in _HOOKS]


def normalise_add_relu(
    layer: nn.Module,
    x: Tensor,
    residual: Tensor | None,
    relu: nn.Module | None,
    adds_in_place: bool,
    relu_in_place: bool,
) -> Tensor:
    """Return ``relu(layer(x) + residual)``.

    Args:
        layer: a robust layer; any other module, which somebody may have put in its place, is called.
        x: its input.
        residual: what is added; None for nothing.
        relu: the module that applies the ReLU; None if a function does.
        adds_in_place: whether the original addition overwrites the layer's output.
        relu_in_place: whether the original function overwrites its input.
    """
    if isinstance(layer, RobustBatchNorm) and (relu is None or (type(relu) is nn.ReLU and not _is_hooked(relu))):
        fused = _activate(layer, x, residual)
        if fused is not None:
            return fused
    y: Tensor = layer(x)
    if residual is not None and adds_in_place:
        y += residual
    elif residual is not None:
        y = y + residual
    if relu is None:
        return torch.relu_(y) if relu_in_place else torch.relu(y)
    activated: Tensor = relu(y)
    return activated


def _is_hooked(module: nn.Module) -> bool:
    """Return whether somebody wants to know of calls of a module, or has replaced its forward."""
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return bool(hooks) or "forward" in vars(module) or any(_OF_ALL_MODULES)


def _activate(layer: RobustBatchNorm, x: Tensor, residual: Tensor | None) -> Tensor | None:
    """Return what one kernel makes of the layer, the addition and the ReLU; None where the layer is to be called."""
    estimator, batch_weight, observers = layer._estimator, layer._batch_weight, layer._observers
    if estimator.kernel is None or not kernels.activates(x, residual, estimator.kernel):
        return None
    if not batch_weight and not any(o.always_estimate for o in observers):
        return None  # the batch's statistics are not wanted
    changed = layer._choose or layer._adjust or layer._tail or layer._active_group or layer._valid is not None
    if changed or layer._tracks() or _is_hooked(layer):
        return None
    if any(o.output is not None or not o.detached for o in observers):
        return None
    if x.dim() < 2 or x.shape[1] != layer.num_features or not has_many_values(x):
        return None
    layer._check_input_dim(x)
    running = layer._running_statistics() if batch_weight != 1.0 or layer.running_mean is not None else None
    spec = choose_spec(estimator, layer.eps, layer._nonfinite, running, batch_weight, layer._backward)
    if spec is None:
        return None
    weight, bias = layer.weight, layer.bias
    y, saved = kernels.activated_forward(x, weight, bias, running, spec, kernels.Activation(residual))
    if needs_function(x, weight, bias, residual):
        composition = (estimator, layer.eps, layer._nonfinite, None, running, batch_weight, layer._backward)
        y = _Activated.apply(x, weight, bias, residual, [y], saved, spec, composition)  # type: ignore[no-untyped-call]
    if observers:
        layer._show(x, KernelNormalised(y, saved), running, batch_weight, observers)
    return y


class _Activated(Function):
    """The output of a kernel, which has been computed already, as a differentiable function of its inputs.

    The output is passed in a list, as in ``_normalise``.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        residual: Tensor | None,
        output: list[Tensor],
        saved: kernels.Saved,
        spec: kernels.Spec,
        composition: tuple[Any, ...],
    ) -> Tensor:
        (y,) = output
        ctx.save_for_backward(x, weight, bias, y)
        ctx.saved, ctx.spec, ctx.composition = saved, spec, composition
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (g,) = grads
        x, weight, bias, y = ctx.saved_tensors
        needs = ctx.needs_input_grad[:4]
        if torch.is_grad_enabled():  # create_graph=True: differentiate the composition, which autograd can follow
            d_residual = torch.where(y.detach() <= 0, 0.0, g)  # the ReLU's own second derivative is 0
            inputs = [t for t, needed in zip((x, weight, bias), needs, strict=False) if needed]
            found: Iterator[Tensor] = iter(())
            if inputs:
                with torch.enable_grad():
                    normalised = compose(x, weight, bias, *ctx.composition).y
                    found = iter(torch.autograd.grad(normalised, inputs, d_residual, create_graph=True))
            results = [next(found) if needed else None for needed in needs[:3]]
            return *results, d_residual if needs[3] else None, None, None, None, None
        dx, *affine, masked = kernels.activated_backward(g, y, x, weight, ctx.saved, ctx.spec, needs[3])
        d_weight, d_bias = (
            d.to(t.dtype) if needed else None for d, t, needed in zip(affine, (weight, bias), needs[1:3], strict=True)
        )
        return dx, d_weight, d_bias, masked, None, None, None, None
