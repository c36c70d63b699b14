"""What an attacker differentiates: an adapter as a function from a batch to its logits."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import gradients, hooks, kernels
from .._errors import unknown_name
from ..estimators import Estimator
from ._call import Inputs, extract_logits

if TYPE_CHECKING:
    from .base import Adapter


def surrogate(adapter: Adapter, gradient: str, of: str, temperature: float, unroll: int) -> View:
    """See ``Adapter.surrogate``."""
    if of not in ("now", "source"):
        raise unknown_name("surrogate of", of, ("now", "source"))
    if unroll not in (0, 1):
        raise ValueError(f"unroll is 0 or 1, the number of adaptation steps to differentiate through; got {unroll!r}.")
    state = adapter.snapshot() if of == "now" else adapter.source_state
    return View(adapter, state, gradients.get(gradient, temperature), unroll)


class View:
    """An adapter in one state, as a function. Its tensors are swapped in for each call, and nothing is written."""

    def __init__(
        self, adapter: Adapter, state: dict[str, Any], stand_in: Callable[[Estimator], Estimator] | None, unroll: int
    ) -> None:
        self.adapter, self.state, self.stand_in, self.unroll = adapter, state, stand_in, unroll
        self.fixed: dict[str, Tensor] = dict(state["learned"])
        """What the adapter's state puts in the place of the model's own: learned parameters and averages, by name."""
        for name, (mean, var) in state["averages"].items():
            prefix = f"{name}." if name else ""
            self.fixed |= {f"{prefix}ema_mean": mean, f"{prefix}ema_var": var}

    def holding(self, fixed: dict[str, Tensor]) -> View:
        """The same function of other tensors."""
        other = copy.copy(self)
        other.fixed = fixed
        return other

    def __call__(self, *args: Any, valid: Tensor | None = None, **kwargs: Any) -> Tensor:
        """The logits of a batch."""
        adapter, model, state = self.adapter, self.adapter.model, self.state
        inputs = Inputs.of(args, kwargs, valid)

        def logits(learned: dict[str, Tensor]) -> Tensor:
            output = torch.func.functional_call(model, {**self.fixed, **learned}, inputs.args, inputs.kwargs)
            return extract_logits(output, adapter.logits, inputs.size)

        if model.training:
            model.eval()
        through = hooks.backward_through(model, self.stand_in) if self.stand_in and adapter.layers else nullcontext()
        unrolls = bool(self.unroll and adapter.learned)
        with adapter.attacked(state, inputs.size), adapter.counting(inputs):
            # With a stand-in the step has other gradients too: its values are those of the true step all the same.
            true = adapter.unrolled(logits, state, inputs) if unrolls and self.stand_in else {}
            with through:
                learned = adapter.unrolled(logits, state, inputs) if unrolls else {}
                learned |= {
                    n: kernels.substitute(p, learned[n]) if n in learned else p.detach() for n, p in true.items()
                }
                return logits(learned)
