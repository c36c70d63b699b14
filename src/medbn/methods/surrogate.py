"""What an attacker differentiates: an adapter as a function from a batch to its logits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import hooks, kernels, stand_ins
from .._names import unknown
from .calls import Inputs, logits_of

if TYPE_CHECKING:
    from .base import Adapter


def surrogate(adapter: Adapter, gradient: str, of: str, temperature: float, unroll: int) -> Callable[..., Tensor]:
    """See ``Adapter.surrogate``. Parameters and averages are swapped in for each call, and nothing is written."""
    if of not in ("now", "source"):
        raise unknown("surrogate of", of, ("now", "source"))
    if unroll not in (0, 1):
        raise ValueError(f"unroll is 0 or 1, the number of adaptation steps to differentiate through; got {unroll!r}.")
    model = adapter.model
    state = adapter.snapshot() if of == "now" else adapter.source_state
    fixed = dict(state["learned"])
    for name, (mean, var) in state["averages"].items():
        fixed |= {f"{name}.ema_mean" if name else "ema_mean": mean, f"{name}.ema_var" if name else "ema_var": var}
    stand_in = stand_ins.get(gradient, temperature)

    def view(*args: Any, valid: Tensor | None = None, **kwargs: Any) -> Tensor:
        inputs = Inputs.of(args, kwargs, valid)

        def logits(learned: dict[str, Tensor]) -> Tensor:
            output = torch.func.functional_call(model, {**fixed, **learned}, inputs.args, inputs.kwargs)
            return logits_of(output, adapter.logits, inputs.size)

        if model.training:
            model.eval()
        through = hooks.backward_through(model, stand_in) if stand_in and adapter.layers else nullcontext()
        with adapter.normalising(), adapter.counting(inputs):
            # With a stand-in the step has other gradients too: its values are those of the true step all the same.
            true = adapter.unrolled(logits, state, inputs) if unroll and adapter.learned and stand_in else {}
            with through:
                learned = adapter.unrolled(logits, state, inputs) if unroll and adapter.learned else {}
                learned |= {
                    n: kernels.substitute(p, learned[n]) if n in learned else p.detach() for n, p in true.items()
                }
                return logits(learned)

    return view
