"""The forward and the backward pass of a method that learns, each replayed as a CUDA graph (``graph=True``).

The loss, the filters and the optimiser stay plain Python between and behind them: they are small, and decide by values.
To them, a replayed pass is a differentiable function of the learned parameters, as the model is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..cuda_graphs import CaptureError, Graph, GraphCache, Guard, capture, find_obstacle
from ._call import Inputs, map_tensors

if TYPE_CHECKING:
    from .learner import Learner

Gather = Callable[[], Callable[..., None]]


class StepGraphs:
    """The captured passes of one adapter. Copies and pickles of it are empty: a graph is of one adapter."""

    def __init__(self) -> None:
        self._cache = GraphCache[_StepGraph]()
        self._checked = False

    def __reduce__(self) -> tuple[Any, ...]:
        return StepGraphs, ()

    def check(self, adapter: Learner, inputs: Inputs) -> None:
        """Raise a RuntimeError that says what makes graphs impossible, also where this call would not need one."""
        if self._checked:
            return
        leaves, _ = tree_flatten((inputs.args, inputs.kwargs))
        obstacle = find_obstacle(adapter.model, [leaf for leaf in leaves if isinstance(leaf, Tensor)])
        if obstacle:
            raise _impossible(obstacle)
        self._checked = True

    def run(self, adapter: Learner, inputs: Inputs, observe: bool = False) -> tuple[Any, Gather] | None:
        """Return the output of ``adapter.run_to_learn`` as a differentiable function of what is learned.

        Beside it, the function that gathers the batch's statistics if they are observed, to be called before the next
        pass. None to run without a graph: calls of one kind are captured when they come for the second time, and calls
        of which some images do not count never are. A RuntimeError says what makes graphs impossible, before any
        change.
        """
        self.check(adapter, inputs)
        if inputs.valid is not None or any(layer._overrides for layer in adapter.layers.values()):
            return None
        leaves, structure = tree_flatten((inputs.args, inputs.kwargs))
        key = (str(structure), observe, *map(id, adapter.learned.values()))

        def capture_step(guard: Guard, pool: Any) -> _StepGraph:
            return _capture(adapter, inputs, observe, guard, pool)

        try:
            step = self._cache.get(adapter.model, key, leaves, capture_step, wait=True)
        except CaptureError as error:
            raise _impossible(error) from error
        return None if step is None else step.run(leaves, adapter.learned.values())


def gather_nothing() -> Callable[..., None]:
    """Stand for what gathers the statistics of a pass, where none are observed."""
    return lambda policy=None: None


def _impossible(why: object) -> RuntimeError:
    return RuntimeError(f"graph=True, and a step cannot be captured as a CUDA graph: {why}")


class _Count:
    """How often a forward pass was replayed: a backward pass belongs to the last one."""

    value = 0


class _StepGraph(NamedTuple):
    forward: Graph[tuple[Any, Gather]]
    backward: Graph[tuple[Tensor | None, ...]]
    guard: Guard
    averages: list[Tensor]
    """Static tensors that stand for the layers' moving averages, which every batch replaces."""
    replays: _Count

    def run(self, leaves: list[Any], learned: Iterable[Tensor]) -> tuple[Any, Gather]:
        """Return the output of a replay, and what gathers its statistics."""
        self.forward.load(leaves)
        if self.averages:
            torch._foreach_copy_(self.averages, self.guard.averages())
        output, gather = self.forward.replay()
        self.replays.value += 1
        results = iter(_Replayed.apply(self, self.replays.value, _differentiable(output), *learned))  # type: ignore[no-untyped-call]
        return map_tensors(output, lambda t: next(results) if t.requires_grad else t.clone()), gather


class _Replayed(Function):
    """Copies of the outputs of a replayed forward pass, whose backward pass is replayed too."""

    @staticmethod
    def forward(ctx: Any, step: _StepGraph, replay: int, outputs: list[Tensor], *learned: Tensor) -> Any:
        ctx.step, ctx.replay = step, replay
        return tuple(t.detach().clone() for t in outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        step = ctx.step
        if ctx.replay != step.replays.value:
            raise RuntimeError(
                "the gradient of a replayed pass is asked for after the next pass has overwritten it; adapt with"
                " graph=False."
            )
        step.backward.load(grads)
        found = [None if g is None else g.clone() for g in step.backward.replay()]
        return None, None, None, *found


def _capture(adapter: Learner, inputs: Inputs, observe: bool, guard: Guard, pool: Any) -> _StepGraph:
    """Capture a forward pass, and the backward pass that follows it; nothing adapts."""
    leaves, structure = tree_flatten((inputs.args, inputs.kwargs))
    # Leaves of their own, at the same addresses. Those of the model may be in a graph that is still alive, as that of
    # the first of two passes: autograd would then wait for the stream of that pass, which a capture must not.
    learned = {name: p.detach().requires_grad_() for name, p in adapter.learned.items()}

    averages = [t.clone() for t in guard.averages()]

    def run(static: list[Any]) -> tuple[Any, Gather]:
        args, kwargs = tree_unflatten(static, structure)
        observed = adapter.observe_statistics() if observe else nullcontext(gather_nothing)
        with torch.enable_grad(), guard.use_averages(averages), observed as gather:
            return adapter.run_to_learn(Inputs(args, kwargs, inputs.size, None), learned), gather

    forward = capture(run, leaves, pool)
    forward.load(leaves)
    # So that what is saved for backward are values, not whatever was there.
    outputs = _differentiable(forward.replay()[0])

    def differentiate(static: list[Any]) -> tuple[Tensor | None, ...]:
        outputs = _differentiable((forward.output if forward.output is not None else forward.replay())[0])
        return torch.autograd.grad(outputs, list(learned.values()), static, retain_graph=True, allow_unused=True)

    if not outputs:
        raise CaptureError("the model's output does not depend on what is learned.")
    backward = capture(differentiate, [torch.zeros_like(t) for t in outputs], pool)
    return _StepGraph(forward, backward, guard, averages, _Count())


def _differentiable(output: Any) -> list[Tensor]:
    """Return the tensors of an output of any structure that depend on what is learned."""
    found: list[Tensor] = []

    def note(t: Tensor) -> Tensor:
        if t.requires_grad:
            found.append(t)
        return t

    map_tensors(output, note)
    return found
