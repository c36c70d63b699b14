"""The surrogate of an adapter: a differentiable function from a batch to its logits, which attackers use."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from .. import gradients, hooks, kernels
from .._errors import unknown_name
from ..estimators import Estimator
from ._call import Inputs, extract_logits

if TYPE_CHECKING:
    from .base import Adapter

MEMORY = "memory: "
"""Begins the names of a surrogate's tensors that are no tensors of the model."""


def make_surrogate(adapter: Adapter, gradient: str, of: str, temperature: float, unroll: int) -> Surrogate:
    """Return a surrogate; ``Adapter.surrogate`` explains the arguments."""
    if of not in ("now", "source"):
        raise unknown_name("surrogate of", of, ("now", "source"))
    if unroll not in (0, 1):
        raise ValueError(f"unroll is 0 or 1, the number of adaptation steps to differentiate through; got {unroll!r}.")
    if adapter.group is not None:
        raise ValueError(
            "an adapter in a process group has no surrogate: an attacker differentiates the whole batch in one process;"
            " adapt the model with group='local' for that."
        )
    state = adapter.snapshot() if of == "now" else adapter.source_state
    return Surrogate(adapter, state, gradients.get(gradient, temperature), unroll)


class Surrogate:
    """An adapter in one state, as a function. Each call swaps that state's tensors in, and changes nothing."""

    def __init__(
        self,
        adapter: Adapter,
        state: dict[str, Any],
        backward_estimator: Callable[[Estimator], Estimator] | None,
        unroll: int,
    ) -> None:
        self.adapter, self.state, self.unroll = adapter, state, unroll
        self.backward_estimator = backward_estimator
        self.tensors: dict[str, Tensor] = dict(state["learned"])
        """The state's learned parameters and moving averages, by their names in the model, and what is used of its
        memory."""
        for name, (mean, var) in state["averages"].items():
            prefix = f"{name}." if name else ""
            self.tensors |= {f"{prefix}ema_mean": mean, f"{prefix}ema_var": var}
        memory = adapter.surrogate_tensors(state["memory"])
        self.tensors |= {MEMORY + name: value for name, value in memory.items()}

    def for_batch_of(self, images: int) -> Surrogate:
        """Return the same function for batches of this size, with all that it depends on in its tensors."""
        memory = self.adapter.surrogate_tensors(self.state["memory"], images)
        return self.with_tensors(self.tensors | {MEMORY + name: value for name, value in memory.items()})

    def with_tensors(self, tensors: dict[str, Tensor]) -> Surrogate:
        """Return the same function with other tensors in the place of the state's."""
        other = copy.copy(self)
        other.tensors = tensors
        return other

    def __call__(self, *args: Any, valid: Tensor | None = None, **kwargs: Any) -> Tensor:
        """Return the logits of a batch. The adapter serves no other thread meanwhile."""
        return self.adapter.run_alone(self._predict, args, kwargs, valid)

    def _predict(self, args: tuple[Any, ...], kwargs: dict[str, Any], valid: Tensor | None) -> Tensor:
        adapter, model, state, backward = self.adapter, self.adapter.model, self.state, self.backward_estimator
        inputs = Inputs.of(args, kwargs, valid)
        memory = {name.removeprefix(MEMORY): t for name, t in self.tensors.items() if name.startswith(MEMORY)}
        tensors = {name: t for name, t in self.tensors.items() if not name.startswith(MEMORY)}

        def run(images: Inputs, learned: dict[str, Tensor] | None = None) -> Any:
            def forward() -> Any:
                return torch.func.functional_call(model, {**tensors, **(learned or {})}, images.args, images.kwargs)

            return adapter.predict_with(forward, images)

        if model.training:
            model.eval()
        normalise = adapter.normalise_as_attacked(inputs.size, state["memory"], memory)
        replace_gradient = hooks.backward_through(model, backward) if backward and adapter.layers else nullcontext()
        unrolls = bool(self.unroll and adapter.learned)
        # Fused attention has no second derivative, which the gradient through a step needs.
        attention = sdpa_kernel(SDPBackend.MATH) if unrolls else nullcontext()
        with normalise, attention, adapter.ignore_padding(inputs):
            # Replaced gradients change the step too. Its value is that of the true step, its gradient the replaced one.
            true_step = adapter.unroll(run, state, inputs) if unrolls and backward else {}
            with replace_gradient:
                learned = adapter.unroll(run, state, inputs) if unrolls else {}
                learned |= {
                    n: kernels.substitute(p, learned[n]) if n in learned else p.detach() for n, p in true_step.items()
                }

                def run_after(images: Inputs, other: dict[str, Tensor] | None = None) -> Any:
                    return run(images, learned if other is None else other)

                output = adapter.correct(run_after(inputs), inputs, state["memory"], run_after)
                return extract_logits(output, adapter.logits, inputs.size)


def make_hashable(value: Any) -> Hashable:
    """Return a hashable value that is equal for equal options.

    Numbers and strings compare by type and value, tensors by contents, containers by their entries. Anything else might
    hide a difference and is equal to nothing.
    """
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return (type(value), value)
    if isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta:
        contents = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return (Tensor, value.dtype, tuple(value.shape), hashlib.blake2b(contents.data).digest())
    if isinstance(value, dict):
        return (dict, tuple((make_hashable(key), make_hashable(item)) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return (type(value), tuple(make_hashable(item) for item in value))
    return object()
