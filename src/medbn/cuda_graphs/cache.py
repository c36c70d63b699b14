"""The graphs of one model, and the rule for when one may be replayed."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import chain
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from .._errors import unknown_name
from .capture import CaptureError, ObstacleError
from .guard import HOOKS, PLAIN, Guard, form

SWITCH = "MEDBN_GRAPHS"
"""The environment variable that switches CUDA graphs off with the value "0"."""
CAPACITY = 4
"""How many graphs a cache keeps."""

T = TypeVar("T")


class GraphCache(Generic[T]):
    """The graphs of one model, at most four, which share the memory that they compute in.

    A graph repeats kernels, not Python code. So it may be replayed only where Python would launch the same kernels on
    the same addresses. That is the case if two things hold.

    First, the call is of the same kind: the caller's key, the shape, strides, type and device of every tensor argument,
    every other argument, the stream, and the settings of torch and medbn that choose kernels are equal. Each kind has a
    graph of its own.

    Second, the model is unchanged since (``Guard``): the same modules without hooks, the same plain attributes and
    objects in containers, the same parameters and buffers at the same addresses. Values may change: arguments are
    copied into static tensors, parameters and buffers are read where they are, and moving averages, which every batch
    replaces, may be any tensors of the same form. If the model has changed, the graph is dropped.

    What this cannot see must not change: what is deep in containers of a model's own, and globals that it reads.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self._entries: OrderedDict[Hashable, _Entry[T]] = OrderedDict()

    def get(
        self,
        model: nn.Module,
        key: Hashable,
        inputs: Sequence[Any],
        capture: Callable[[Guard, Any], T],
        *,
        wait: bool = False,
    ) -> T | None:
        """Return the graph for calls of this kind, and capture it if there is no valid one.

        Args:
            model: the model that runs.
            key: what the caller's Python code depends on beside the model and the inputs.
            inputs: what the call reads: tensors and plain values.
            capture: returns a graph, or an object that holds one, given the model's guard and a memory pool. A
                CaptureError that it raises is remembered and raised again for the same kind.
            wait: return None for the first call of a kind and capture at the second: most kinds come once.
        """
        key = (key, *map(_describe, inputs), _stream(inputs), settings())
        entry = self._entries.get(key)
        if entry is None or not entry.guard.valid():
            obstacle = find_obstacle(model, [value for value in inputs if isinstance(value, Tensor)])
            if obstacle:
                raise ObstacleError(obstacle)
            self._entries.pop(key, None)
            while len(self._entries) >= self.capacity:
                self._entries.popitem(last=False)
            entry = self._entries[key] = _Entry(Guard(model))
            if wait:
                return None
        self._entries.move_to_end(key)
        if entry.failure is not None:
            raise CaptureError(entry.failure)
        if entry.graph is None:
            pool = self._pool()
            try:
                entry.graph = capture(entry.guard, pool)
            except CaptureError as error:
                entry.failure = str(error)
                raise
            entry.pool = pool
        return entry.graph

    def __len__(self) -> int:
        return sum(entry.graph is not None for entry in self._entries.values())

    def _pool(self) -> Any:
        # Only a pool that a living graph uses can be used again.
        pools = [entry.pool for entry in self._entries.values() if entry.pool is not None]
        return pools[0] if pools else torch.cuda.graph_pool_handle()


class _Entry(Generic[T]):
    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.graph: T | None = None
        self.pool: Any = None
        self.failure: str | None = None


def find_obstacle(model: nn.Module, tensors: Iterable[Tensor]) -> str | None:
    """Return the reason that rules out a capture of the model on these tensors, or None if a capture may be tried."""
    if switched_off():
        return f"{SWITCH}=0 switches CUDA graphs off."
    tensors = list(tensors)
    for t in tensors:
        if not t.is_cuda:
            return f"the images are on {t.device}, and CUDA graphs need a CUDA device."
    devices = {str(t.device) for t in tensors}
    others = {str(t.device) for t in chain(model.parameters(), model.buffers())} - devices
    if others or len(devices) > 1:
        return f"the images are on {_join(devices)}, and parts of the model on {_join(others or devices)}."
    hooked = [n for n, m in model.named_modules() if any(getattr(m, kind) for kind in HOOKS)]
    hooked += [n for n, m in model.named_modules() if getattr(m, "_observers", ())]
    if hooked:
        return f"{hooked[0] or 'the model'!r} has a hook or an observer, which a replay would not call."
    return None


def switched_off() -> bool:
    """Return whether the environment variable switches CUDA graphs off."""
    value = os.environ.get(SWITCH, "1")
    if value not in ("0", "1"):
        raise unknown_name(SWITCH, value, ("0", "1"))
    return value == "0"


def _join(names: set[str]) -> str:
    return ", ".join(sorted(names))


def settings() -> Hashable:
    """Return the settings of torch and medbn that decide which kernels run."""
    backends: Any = torch.backends
    return (
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        getattr(torch.utils.deterministic, "fill_uninitialized_memory", None),
        torch.is_anomaly_enabled(),
        (backends.cudnn.enabled, backends.cudnn.benchmark, backends.cudnn.deterministic),
        _precisions(),
        (
            backends.cuda.flash_sdp_enabled(),
            backends.cuda.mem_efficient_sdp_enabled(),
            backends.cuda.math_sdp_enabled(),
        ),
        (torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")),
        os.environ.get("MEDBN_KERNELS"),
        os.environ.get(SWITCH),
    )


def _precisions() -> Hashable:
    backends: Any = torch.backends
    matmul = backends.cuda.matmul
    reduced = (matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction)
    if hasattr(backends.cudnn, "conv"):  # torch 2.9 or later, where reading the old attributes may raise
        return (backends.fp32_precision, backends.cudnn.conv.fp32_precision, matmul.fp32_precision, reduced)
    return (backends.cudnn.allow_tf32, matmul.allow_tf32, torch.get_float32_matmul_precision(), reduced)


def _describe(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        return form(value)
    if isinstance(value, PLAIN):
        return (type(value), value)  # 1, 1.0 and True are equal, but code may tell them apart
    raise ObstacleError(f"an argument is a {type(value).__name__}, which may change unnoticed.")


def _stream(inputs: Sequence[Any]) -> int | None:
    device = next((value.device for value in inputs if isinstance(value, Tensor) and value.is_cuda), None)
    return None if device is None else torch.cuda.current_stream(device).cuda_stream
