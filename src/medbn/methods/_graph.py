"""An adapter's forward pass, replayed as a CUDA graph (``graph=True``).

For small images, launching the kernels takes longer than running them, and robust statistics need more launches than
BatchNorm's. A replay launches all of them at once. ``medbn.cuda_graphs.GraphCache`` says when a graph may be replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from ..cuda_graphs import CaptureError, Graph, GraphCache, Guard, ObstacleError, capture, find_obstacle
from ._call import Inputs, clone_output

if TYPE_CHECKING:
    from .base import Adapter

Gather = Callable[[], Callable[..., None]]


class ForwardGraphs:
    """The captured forward passes of one adapter. Copies and pickles of it are empty: a graph is of one adapter."""

    def __init__(self) -> None:
        self._cache = GraphCache[_ForwardGraph]()
        self._checked = False

    def __reduce__(self) -> tuple[Any, ...]:
        return ForwardGraphs, ()

    def run(self, adapter: Adapter, inputs: Inputs) -> tuple[Any, Gather] | None:
        """Return the model's output, and the function that gathers the batch's statistics; None to run without a graph.

        Calls of one kind are captured when they come for the second time, once the adapter normalises the next batches
        alike. Padded batches run without a graph. A RuntimeError says what makes graphs impossible, before any change.
        """
        leaves, structure = tree_flatten((inputs.args, inputs.kwargs))
        try:
            if not self._checked:
                _check(adapter, leaves)
                self._checked = True
            if inputs.valid is not None or not adapter.repeats_pass():
                return None

            def capture_pass(guard: Guard, pool: Any) -> _ForwardGraph:
                return _capture(adapter, inputs, guard, pool)

            forward = self._cache.get(adapter.model, str(structure), leaves, capture_pass, wait=True)
        except CaptureError as error:
            raise RuntimeError(
                f"graph=True, and the forward pass cannot be captured as a CUDA graph: {error}"
            ) from error
        return None if forward is None else forward.replay(leaves)


class _ForwardGraph(NamedTuple):
    graph: Graph[tuple[Any, Gather]]
    guard: Guard
    averages: list[Tensor]
    """Static tensors that stand for the layers' moving averages, which every batch replaces."""

    def replay(self, leaves: list[Any]) -> tuple[Any, Gather]:
        self.graph.load(leaves)
        if self.averages:
            torch._foreach_copy_(self.averages, self.guard.averages())
        output, gather = self.graph.replay()
        return tree_map(clone_output, output), gather


def _capture(adapter: Adapter, inputs: Inputs, guard: Guard, pool: Any) -> _ForwardGraph:
    """Capture one forward pass; nothing adapts."""
    leaves, structure = tree_flatten((inputs.args, inputs.kwargs))
    averages = [t.clone() for t in guard.averages()]

    def run(static: list[Any]) -> tuple[Any, Gather]:
        args, kwargs = tree_unflatten(static, structure)
        with guard.use_averages(averages), adapter.observe_statistics() as gather:
            return adapter.run_model(Inputs(args, kwargs, inputs.size, None)), gather

    return _ForwardGraph(capture(run, leaves, pool), guard, averages)


def _check(adapter: Adapter, leaves: list[Any]) -> None:
    """Raise an ObstacleError if graphs are impossible, also where this first call would not need one."""
    obstacle = find_obstacle(adapter.model, [leaf for leaf in leaves if isinstance(leaf, Tensor)])
    if obstacle:
        raise ObstacleError(obstacle)
