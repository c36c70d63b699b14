"""One optimiser step as a differentiable function of the gradients, for attacks that unroll it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def optimizer_step(
    optimizer: torch.optim.Optimizer | None, state: dict[str, Any], gradients: Sequence[Tensor | None]
) -> dict[str, Tensor]:
    """Return the learned parameters after one step of the optimiser.

    Args:
        optimizer: Adam or SGD; others raise.
        state: an adapter's snapshot, with the parameters and the optimiser's moments before the step.
        gradients: one for each learned parameter; those without one are left out of the result.
    """
    rule = _rules.get(type(optimizer))
    if rule is None:
        raise ValueError(f"unroll knows the steps of Adam and SGD, not of {type(optimizer).__name__}.")
    saved = state["optimizer"]
    options = saved["param_groups"][0]
    unknown = [o for o in ("maximize", "amsgrad", "decoupled_weight_decay") if options.get(o)]
    unknown += ["several parameter groups"] if len(saved["param_groups"]) > 1 else []
    if unknown:
        raise ValueError(f"unroll does not know {type(optimizer).__name__} with {', '.join(unknown)}.")
    return {
        name: rule(p, g, saved["state"].get(i, {}), options)
        for i, ((name, p), g) in enumerate(zip(state["learned"].items(), gradients, strict=True))
        if g is not None
    }


def _adam(p: Tensor, g: Tensor, moments: dict[str, Any], options: dict[str, Any]) -> Tensor:
    (beta1, beta2), step = options["betas"], float(moments.get("step", 0)) + 1
    g = g + options["weight_decay"] * p
    first = beta1 * moments.get("exp_avg", torch.zeros_like(p)) + (1 - beta1) * g
    second = beta2 * moments.get("exp_avg_sq", torch.zeros_like(p)) + (1 - beta2) * g.square()
    # The square root has no derivative at 0, which is reached only where there is no gradient.
    root = (second / (1 - beta2**step)).clamp(min=torch.finfo(p.dtype).tiny).sqrt()
    new: Tensor = p - options["lr"] * (first / (1 - beta1**step)) / (root + options["eps"])
    return new


def _sgd(p: Tensor, g: Tensor, moments: dict[str, Any], options: dict[str, Any]) -> Tensor:
    g = g + options["weight_decay"] * p
    buffer = moments.get("momentum_buffer")
    momentum = options["momentum"]
    if momentum:
        average = g if buffer is None else momentum * buffer + (1 - options["dampening"]) * g
        g = g + momentum * average if options["nesterov"] else average
    new: Tensor = p - options["lr"] * g
    return new


_rules: dict[type, Callable[..., Tensor]] = {torch.optim.Adam: _adam, torch.optim.SGD: _sgd}
