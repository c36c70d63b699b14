"""One step of an attack, recorded once on a GPU as a CUDA graph and played back for all the others.

An attack takes the same step a hundred times, and Python needs longer to launch it than a GPU to compute it. What a
step reads lies in static tensors, which every attack fills anew: images, labels, which images are malicious, and the
adapter's state. So one recording serves a whole stream. Whatever the Python code of a step looks at is part of a key,
and another key is another recording. Recordings die with their adapter.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable
from itertools import chain
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from .. import cuda_graphs
from ..cuda_graphs import PLAIN, SWITCH, CaptureError, form
from ..methods import Adapter

KEPT = 4
"""Recordings per adapter; they share the memory in which a step computes."""

Step = Callable[[Any], tuple[Tensor, Tensor, Tensor]]
"""From what is given to the moved images, the objective and the logits, none of them part of an autograd graph."""


class Given(NamedTuple):
    """What one step reads."""

    batch: tuple[Any, ...]
    mine: Tensor
    """The malicious images, which a step moves."""
    state: dict[str, Tensor]
    """Of the adapter, as the attacker knows it."""


class Recording:
    """A step, and the tensors it reads and writes."""

    def __init__(self, graph: Any, pool: Any, static: Given, value: Tensor, logits: Tensor | None) -> None:
        self.graph, self.pool = graph, pool
        self.static, self.value, self.logits = static, value, logits

    @property
    def mine(self) -> Tensor:
        """The malicious images, where they are now."""
        return self.static.mine

    def load(self, given: Given) -> None:
        """Fill the static tensors."""
        fill(self.static, given)

    def replay(self) -> None:
        """Take one step."""
        self.graph.replay()


_recordings: WeakKeyDictionary[Adapter, OrderedDict[Hashable, Recording | str]] = WeakKeyDictionary()
_told: set[str] = set()


def fill(static: Given, given: Given) -> None:
    """Copy what is given into tensors that stay where they are."""
    with torch.no_grad():
        for to, value in zip(tree_leaves(static), tree_leaves(given), strict=True):
            to.copy_(value)


def recorded(adapter: Adapter, key: Hashable, given: Given, step: Step, logits: bool) -> Recording:
    """The recording for this key, filled with what is given; it is made if there is none, or raises CaptureError."""
    kept = _recordings.setdefault(adapter, OrderedDict())
    found = kept.get(key)
    if isinstance(found, str):
        raise CaptureError(found)
    if found is None:
        while len(kept) >= KEPT:
            kept.popitem(last=False)
        pools = [one.pool for one in kept.values() if isinstance(one, Recording)]
        try:
            # A pool that nothing uses any more cannot be used again.
            found = record(step, given, pools[0] if pools else torch.cuda.graph_pool_handle(), logits)
        except CaptureError as error:
            kept[key] = str(error)
            raise
        kept[key] = found
    kept.move_to_end(key)
    found.load(given)
    return found


def warn(reason: str) -> None:
    """Say, once per reason, why a step is not recorded."""
    if reason not in _told:
        _told.add(reason)
        warnings.warn(
            f"the attack's step could not be recorded as a CUDA graph and runs without, slower: {reason}"
            f" (DIA(graph=False) or {SWITCH}=0 do not try.)",
            stacklevel=2,
        )


def obstacle(adapter: Adapter, images: Tensor) -> str | None:
    """What rules a recording out, as far as one can tell without trying."""
    return cuda_graphs.obstacle(adapter.model, [images])


# --- what a recording depends on --------------------------------------------------------------------------------------


def key_of(adapter: Adapter, given: Given, *options: Hashable) -> Hashable:
    """Everything that the Python code of a step looks at, and where the tensors are that it does not copy."""
    swapped = given.state.keys()
    model = adapter.model
    named = chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
    tensors = tuple((name, _address(t)) for name, t in named if name not in swapped)
    facts = tuple((name, _facts(module)) for name, module in adapter.named_modules(remove_duplicate=False))
    shapes = tuple(form(t) for t in tree_leaves(given))
    pick = id(adapter.logits) if callable(adapter.logits) else adapter.logits
    stream = torch.cuda.current_stream(given.mine.device).cuda_stream if given.mine.is_cuda else None
    return (options, tuple(swapped), shapes, tensors, facts, pick, stream, cuda_graphs.settings())


def _facts(module: torch.nn.Module) -> Hashable:
    """What a module's code may look at: plain values, and tensors that are neither parameters nor buffers."""
    return (type(module), *((name, _fact(v)) for name, v in vars(module).items() if isinstance(v, (*PLAIN, Tensor))))


def _fact(value: Any) -> Hashable:
    return _address(value) if isinstance(value, Tensor) else value


def _address(t: Tensor) -> Hashable:
    return (t.data_ptr(), *form(t), t.requires_grad)


# --- recording --------------------------------------------------------------------------------------------------------


def record(step: Step, given: Given, pool: Any, logits: bool) -> Recording:
    """Run the step a few times, then once more for the record."""
    with torch.cuda.device(given.mine.device), cuda_graphs.uncached_autocast():
        static = tree_map(torch.empty_like, given)
        fill(static, given)
        _, reached, scores = cuda_graphs.warm_up(lambda: tuple(t.clone() for t in step(static)))
        value, kept = torch.empty_like(reached), torch.empty_like(scores) if logits else None

        def once() -> None:
            moved, reached, scores = step(static)
            static.mine.copy_(moved)
            value.copy_(reached)
            if kept is not None:
                kept.copy_(scores)

        graph, _ = cuda_graphs.recorded(once, pool)
    return Recording(graph, pool, static, value, kept)
