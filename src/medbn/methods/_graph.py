"""An adapter's forward pass, recorded on a GPU as a CUDA graph and played back.

Small images are done before Python has launched the kernels for them, so that launching is what takes the time, and
robust statistics are launched in more pieces than BatchNorm's. Played back, one launch does for all. What the pass
reads lies in static tensors, which every call fills: its arguments and the moving averages. Parameters and buffers are
read where they are, so they may change their values, and everything else that the model's code looks at is compared
before each call. A call that differs is answered without a recording; if it comes once more, there will be another one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from .. import cuda_graphs
from ..cuda_graphs import HOOKS, PLAIN, CaptureError, form
from ..layers import RobustBatchNorm
from ._call import Inputs, clone_output

if TYPE_CHECKING:
    from .base import Adapter

KEPT = 4
"""Recordings per adapter; they share the memory in which a pass computes."""
Gather = Callable[[], Callable[..., None]]
AVERAGES = ("ema_mean", "ema_var")


class Answers:
    """The recordings of one adapter."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, Answer | Unchanged] = OrderedDict()
        self._asked = False

    def get(self, adapter: Adapter, inputs: Inputs) -> Answer | None:
        """The recording for such a call, which is made when it comes for the second time; None before."""
        if not self._asked:
            _insist(adapter, inputs)
            self._asked = True
        if inputs.valid is not None or not adapter.repeats_pass():
            return None
        key = _key(inputs)
        known = self._known.get(key)
        if known is None or not known.holds():
            _insist(adapter, inputs)
            self._known.pop(key, None)
            self._known[key] = Unchanged(adapter.model)
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
            return None
        if isinstance(known, Unchanged):
            pools = [one.pool for one in self._known.values() if isinstance(one, Answer)]
            # A pool that nothing uses any more cannot be used again.
            pool = pools[0] if pools else torch.cuda.graph_pool_handle()
            try:
                known = self._known[key] = record(adapter, inputs, known, pool)
            except CaptureError as error:
                raise _impossible(str(error)) from error
        self._known.move_to_end(key)
        return known


@dataclass
class Answer:
    """A forward pass, and the tensors it reads and writes."""

    graph: Any
    pool: Any
    """The memory in which it computes."""
    model: Unchanged
    """As it was recorded."""
    static: list[Any]
    """The arguments that it reads."""
    averages: list[Tensor]
    output: Any
    gather: Gather

    def holds(self) -> bool:
        """Whether it is still what the model would do."""
        return self.model.holds()

    def play(self, inputs: Inputs) -> tuple[Any, Gather]:
        """The output, and what gathers the batch's statistics."""
        for to, value in zip(self.static, tree_leaves((inputs.args, inputs.kwargs)), strict=True):
            if isinstance(to, Tensor):
                to.copy_(value)
        if self.averages:
            torch._foreach_copy_(self.averages, self.model.averages())
        self.graph.replay()
        return tree_map(clone_output, self.output), self.gather


def record(adapter: Adapter, inputs: Inputs, model: Unchanged, pool: Any) -> Answer:
    """Answer a few times, then once more for the record; nothing adapts."""
    leaves, structure = tree_flatten((inputs.args, inputs.kwargs))
    static = [torch.empty_like(leaf).copy_(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    averages = [t.clone() for t in model.averages()]
    args, kwargs = tree_unflatten(static, structure)
    call = Inputs(args, kwargs, inputs.size, None)
    first = next(leaf for leaf in static if isinstance(leaf, Tensor))

    def answer() -> tuple[Any, Gather]:
        with adapter.observe_statistics() as gather:
            return adapter.run_model(call), gather

    with torch.cuda.device(first.device), cuda_graphs.uncached_autocast(), model.holding(averages):
        cuda_graphs.warm_up(answer)
        graph, (output, gather) = cuda_graphs.recorded(answer, pool)
    return Answer(graph, pool, model, static, averages, output, gather)


class Unchanged:
    """What a model's code looks at, to be compared with later; and its moving averages, which may be any."""

    def __init__(self, model: nn.Module) -> None:
        self._settings = cuda_graphs.settings()
        self._entries: list[tuple[dict[str, Any], str, Any]] = []
        self._sizes: list[tuple[dict[str, Any], int]] = []
        self._hooks: list[dict[Any, Any]] = []
        self._averages: list[tuple[dict[str, Any], str, Hashable]] = []
        for module in model.modules():
            own = vars(module)
            self._entries += [(own, name, v) for name, v in own.items() if isinstance(v, (*PLAIN, Tensor, tuple))]
            self._hooks += [own[kind] for kind in HOOKS if kind in own]
            for kind in ("_parameters", "_buffers", "_modules"):
                held = own[kind]
                moving = AVERAGES if kind == "_buffers" and isinstance(module, RobustBatchNorm) else ()
                for name, value in held.items():
                    if name in moving and value is not None:
                        self._averages.append((held, name, form(value)))
                    else:
                        self._entries.append((held, name, value))
                self._sizes.append((held, len(held)))
        self._places = [(v, v.data_ptr()) for _, _, v in self._entries if isinstance(v, Tensor)]

    def holds(self) -> bool:
        """Whether all that is as it was."""
        return (
            all(d.get(name) is v or _equal(d.get(name), v) for d, name, v in self._entries)
            and all(t.data_ptr() == place for t, place in self._places)
            and all(len(d) == size for d, size in self._sizes)
            and not any(self._hooks)
            and all(isinstance(d[n], Tensor) and form(d[n]) == known for d, n, known in self._averages)
            and cuda_graphs.settings() == self._settings
        )

    def averages(self) -> list[Tensor]:
        """The moving averages of all layers, as they are now."""
        return [held[name] for held, name, _ in self._averages]

    @contextmanager
    def holding(self, averages: list[Tensor]) -> Iterator[None]:
        """Put other tensors in the place of the moving averages."""
        before = self.averages()
        try:
            for (held, name, _), value in zip(self._averages, averages, strict=True):
                held[name] = value
            yield
        finally:
            for (held, name, _), value in zip(self._averages, before, strict=True):
                held[name] = value


def _equal(value: Any, other: Any) -> bool:
    return isinstance(value, PLAIN) and type(value) is type(other) and value == other


def _key(inputs: Inputs) -> Hashable:
    """What kind of call this is."""
    leaves, structure = tree_flatten((inputs.args, inputs.kwargs))
    for leaf in leaves:
        if not isinstance(leaf, (Tensor, *PLAIN)):
            raise _impossible(f"an argument is a {type(leaf).__name__}, which may change unseen.")
    stream = torch.cuda.current_stream().cuda_stream if torch.cuda.is_available() else None
    # With their types: 1, 1.0 and True are equal, and a model's code may tell them apart.
    kinds = tuple(form(leaf) if isinstance(leaf, Tensor) else (type(leaf), leaf) for leaf in leaves)
    return (str(structure), kinds, stream)


def _insist(adapter: Adapter, inputs: Inputs) -> None:
    """Refuse a call that cannot be recorded, before anything has changed."""
    tensors = [leaf for leaf in tree_leaves((inputs.args, inputs.kwargs)) if isinstance(leaf, Tensor)]
    reason = cuda_graphs.obstacle(adapter.model, tensors)
    if reason:
        raise _impossible(reason)


def _impossible(reason: str) -> RuntimeError:
    return RuntimeError(f"graph=True, and the answer cannot be recorded as a CUDA graph: {reason}")
