"""Capture a function as a CUDA graph and replay it."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

WARM_UPS = 3
"""How often a function runs before it is captured."""

T = TypeVar("T")


class CaptureError(Exception):
    """The reason why something cannot be captured as a CUDA graph."""


class ObstacleError(CaptureError):
    """A reason that rules a capture out without trying it."""


class Graph(Generic[T]):
    """A captured function: the CUDA graph, its static inputs, and its output, which every replay overwrites."""

    def __init__(self, graph: Any, inputs: list[Any], output: T) -> None:
        self.graph, self.inputs, self.output = graph, inputs, output

    def load(self, inputs: Sequence[Any]) -> None:
        """Copy new values into the static input tensors."""
        with torch.no_grad():
            for static, value in zip(self.inputs, inputs, strict=True):
                if isinstance(static, Tensor):
                    static.copy_(value)

    def replay(self) -> T:
        """Run the captured kernels on the static inputs; the output is valid until the cache's next replay."""
        self.graph.replay()
        return self.output


def capture(function: Callable[[list[Any]], T], inputs: Sequence[Any], pool: Any) -> Graph[T]:
    """Capture a function of inputs, of which at least one is a tensor; raise CaptureError if that fails.

    Args:
        function: called with static copies of the inputs. It may write to them.
        inputs: tensors, which a replay reads anew, and plain values, which are fixed.
        pool: the memory to compute in, from ``torch.cuda.graph_pool_handle()``.
    """
    device = next(value.device for value in inputs if isinstance(value, Tensor))
    with torch.cuda.device(device), _disable_autocast_cache():
        with torch.no_grad():
            static = [torch.empty_like(v).copy_(v) if isinstance(v, Tensor) else v for v in inputs]
        warm_up(lambda: function(static))
        graph, output = _capture(lambda: function(static), pool)
    return Graph(graph, static, output)


def warm_up(run: Callable[[], T]) -> T:
    """Run a function a few times before its capture and return the first result; raise CaptureError if it synchronises.

    The first run compiles and chooses kernels. The others fail where the host waits for the GPU: within a capture that
    would leave torch in disorder.
    """
    current, (side, _) = torch.cuda.current_stream(), _streams(torch.cuda.current_device())
    side.wait_stream(current)
    try:
        with torch.cuda.stream(side):
            result = run()
            try:
                with _forbid_synchronisation():
                    for _ in range(WARM_UPS - 1):
                        run()
            except RuntimeError as error:
                raise CaptureError(f"it waits for the GPU: {_first_line(error)}") from error
    finally:
        current.wait_stream(side)
    return result


def _capture(run: Callable[[], T], pool: Any) -> tuple[Any, T]:
    """Return the graph of one run and what that run returned, whose tensors every replay overwrites."""
    _, stream = _streams(torch.cuda.current_device())
    graph = torch.cuda.CUDAGraph()
    try:
        with _clean_up_after_failure(pool), _pause_garbage_collection():  # noqa: SIM117 - torch.cuda.graph exits first
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                result = run()
    except Exception as error:
        raise CaptureError(_first_line(error.__context__ or error)) from error
    return graph, result


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


@cache
def _streams(device: int) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """Return the streams to warm up and to capture on: always the same, as cuBLAS keeps memory for each stream."""
    return torch.cuda.Stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def _disable_autocast_cache() -> Iterator[None]:
    """Let autocast cast weights in every pass: its cached copies are freed after its context, but a graph reads on."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


@contextmanager
def _forbid_synchronisation() -> Iterator[None]:
    before = torch.cuda.get_sync_debug_mode()
    _set_sync_debug_mode(2)
    try:
        yield
    finally:
        _set_sync_debug_mode(before)


def _set_sync_debug_mode(mode: int) -> None:
    with warnings.catch_warnings():  # it warns that it may miss some synchronisations
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode(mode)


@contextmanager
def _pause_garbage_collection() -> Iterator[None]:
    """Collect garbage before the capture and not during it, when an older graph must not be destroyed."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _clean_up_after_failure(pool: Any) -> Iterator[None]:
    """Restore what torch before 2.12 leaves behind when a capture fails: stream, allocator, random numbers."""
    stream, index = torch.cuda.current_stream(), torch.cuda.current_device()
    generator = torch.cuda.default_generators[index]
    state = generator.get_state()
    try:
        yield
    except BaseException:
        torch.cuda.set_stream(stream)
        with suppress(Exception):
            torch._C._cuda_endAllocateToPool(index, pool)
        with suppress(Exception):
            fresh = torch.Generator(torch.device("cuda", index))
            fresh.set_state(state)
            generator.graphsafe_set_state(fresh)
        raise
