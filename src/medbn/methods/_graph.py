"""An adapter's forward pass, replayed as a CUDA graph (``graph=``).

For small images, launching the kernels takes longer than running them, and robust statistics need more launches than
BatchNorm's. A replay launches all of them at once. ``medbn.cuda_graphs.GraphCache`` says when a graph may be replayed.

``graph=True`` insists: what makes graphs impossible is an error. ``graph=None`` tries: a graph is used where a replay
gave the bits of the plain pass and was faster, and what makes it impossible is logged at debug level.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from ..cuda_graphs import CaptureError, Graph, GraphCache, Guard, ObstacleError, capture, find_obstacle
from ._call import Inputs, clone_output, map_tensors

if TYPE_CHECKING:
    from .base import Adapter

Gather = Callable[[], Callable[..., None]]

WORTHWHILE = 0.9
"""With ``graph=None``, a replay is to take at most this part of the time of the plain pass."""
MOST_VAIN = 16
"""With ``graph=None``, after so many calls in a row for which there was no graph, no more are tried."""

_log = logging.getLogger("medbn")


class ForwardGraphs:
    """The captured forward passes of one adapter. Copies and pickles of it are empty: a graph is of one adapter."""

    def __init__(self) -> None:
        self._cache = GraphCache[_ForwardGraph]()
        self._checked = False
        self._vain = 0
        self._told: set[str] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return ForwardGraphs, ()

    def run(self, adapter: Adapter, inputs: Inputs) -> tuple[Any, Gather] | None:
        """Return the model's output, and the function that gathers the batch's statistics; None to run without a graph.

        Calls of one kind are captured when they come for the second time, once the adapter normalises the next batches
        alike. Padded batches run without a graph. With ``graph=True``, a RuntimeError says what makes graphs
        impossible, before any change.
        """
        if adapter.graph is None:
            return self._try(adapter, inputs) if self._vain < MOST_VAIN and on_gpu(inputs) else None
        try:
            return self._run(adapter, inputs, capture_pass)
        except CaptureError as error:
            raise RuntimeError(
                f"graph=True, and the forward pass cannot be captured as a CUDA graph: {error}"
            ) from error

    def _try(self, adapter: Adapter, inputs: Inputs) -> tuple[Any, Gather] | None:
        """Return what a replay returns; None where there is no graph for whatever reason."""
        result = None
        try:
            result = self._run(adapter, inputs, _capture_if_worthwhile)
        except Exception as error:  # of any kind: what is wrong with the call itself, the plain pass says
            if _ran_out_of_memory(error):
                self.give_up()
            else:
                self._tell(str(error))
        self._vain = 0 if result is not None else self._vain + 1
        return result

    def give_up(self) -> bool:
        """Free all graphs, and try no more, because memory ran out; return whether there was anything to free."""
        held = len(self._cache) > 0
        self._cache = GraphCache()
        self._vain = MOST_VAIN
        torch.cuda.empty_cache()
        self._tell("memory ran out")
        return held

    def _tell(self, why: str) -> None:
        if why not in self._told:
            self._told.add(why)
            _log.debug("the forward pass runs without a CUDA graph: %s", why)

    def _run(
        self, adapter: Adapter, inputs: Inputs, capture_one: Callable[[Adapter, Inputs, Guard, Any], _ForwardGraph]
    ) -> tuple[Any, Gather] | None:
        leaves, structure = tree_flatten((inputs.args, inputs.kwargs))
        if not self._checked:
            _check(adapter, leaves)
            self._checked = True
        if inputs.valid is not None or not adapter.repeats_pass():
            return None
        forward = self._cache.get(
            adapter.model,
            str(structure),
            leaves,
            lambda guard, pool: capture_one(adapter, inputs, guard, pool),
            wait=True,
        )
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


def capture_pass(adapter: Adapter, inputs: Inputs, guard: Guard, pool: Any) -> _ForwardGraph:
    """Capture one forward pass; nothing adapts."""
    leaves, structure = tree_flatten((inputs.args, inputs.kwargs))
    averages = [t.clone() for t in guard.averages()]

    def run(static: list[Any]) -> tuple[Any, Gather]:
        args, kwargs = tree_unflatten(static, structure)
        with guard.use_averages(averages), adapter.observe_statistics() as gather:
            return adapter.run_model(Inputs(args, kwargs, inputs.size, None)), gather

    return _ForwardGraph(capture(run, leaves, pool), guard, averages)


def _capture_if_worthwhile(adapter: Adapter, inputs: Inputs, guard: Guard, pool: Any) -> _ForwardGraph:
    """Capture one forward pass, and raise a CaptureError if a replay gives other bits or is hardly faster.

    Random numbers that the passes draw are returned to their generators; a model that draws any has no graph, because
    its replays draw others.
    """
    leaves = tree_leaves((inputs.args, inputs.kwargs))
    if any(type(module).__name__ == "OptimizedModule" for module in adapter.model.modules()):
        raise ObstacleError("torch.compile may capture graphs of its own.")

    def run() -> Any:
        with adapter.observe_statistics():
            return adapter.run_model(inputs)

    with torch.random.fork_rng(devices=_devices(leaves)):
        before = _reserved()
        forward = capture_pass(adapter, inputs, guard, pool)
        memory = _reserved() - before
        run()  # so that neither is the first of its kind
        expected, plain_seconds = timed(run)
        forward.replay(leaves)
        (found, _), seconds = timed(lambda: forward.replay(leaves))
    if not _equal(expected, found):
        raise CaptureError("a replay gives other bits, as where a model draws random numbers or adds in any order.")
    if seconds > WORTHWHILE * plain_seconds:
        raise CaptureError(f"it does not pay: {1e3 * seconds:.2f} ms with a graph, {1e3 * plain_seconds:.2f} without.")
    _log.debug(
        "captured a forward pass as a CUDA graph: %.2f ms, %.2f without, %.0f MiB more memory",
        1e3 * seconds,
        1e3 * plain_seconds,
        memory / 2**20,
    )
    return forward


def _equal(expected: Any, found: Any) -> bool:
    """Return whether two outputs have the same bits; NaN equals NaN."""
    pairs = zip(_tensors(expected), _tensors(found), strict=True)
    return all(a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all()) for a, b in pairs)


def _tensors(output: Any) -> list[Tensor]:
    """Return all tensors of an output of any structure."""
    found: list[Tensor] = []

    def note(t: Tensor) -> Tensor:
        found.append(t)
        return t

    map_tensors(output, note)
    return found


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    """Return what a function returns, and the seconds between its begin and its end on the GPU."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    begin.record()
    result = run()
    end.record()
    end.synchronize()
    return result, float(begin.elapsed_time(end)) / 1e3


def _ran_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out, also where the error is a consequence of that."""
    while error.__cause__ is not None:
        error = error.__cause__
    return isinstance(error, torch.cuda.OutOfMemoryError)


def on_gpu(inputs: Inputs) -> bool:
    """Return whether the images are on a GPU, and no capture is going on already."""
    first = next(iter(inputs.images().values()), None)
    return first is not None and first.is_cuda and not torch.cuda.is_current_stream_capturing()


def _devices(leaves: list[Any]) -> list[torch.device]:
    return list({leaf.device for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_cuda})


def _reserved() -> int:
    return torch.cuda.memory_reserved() if torch.cuda.is_available() else 0


def _check(adapter: Adapter, leaves: list[Any]) -> None:
    """Raise an ObstacleError if graphs are impossible, also where this first call would not need one."""
    obstacle = find_obstacle(adapter.model, [leaf for leaf in leaves if isinstance(leaf, Tensor)])
    if obstacle:
        raise ObstacleError(obstacle)
