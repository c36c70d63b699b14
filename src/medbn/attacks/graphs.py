"""One step of an attack, recorded once on a GPU as a CUDA graph and played back for all the others.

An attack takes the same step a hundred times, and Python needs longer to launch it than a GPU to compute it. What a
step reads lies in static tensors, which every attack fills anew: images, labels, which images are malicious, and the
adapter's state. So one recording serves a whole stream. Whatever the Python code of a step looks at is part of a key,
and another key is another recording. Recordings die with their adapter.
"""

from __future__ import annotations

import gc
import os
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import chain
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from .._names import unknown
from ..estimators import Estimator
from ..methods.base import Adapter
from ..policies import Policy

SWITCH = "MEDBN_GRAPHS"
"""The environment variable that, if "0", switches recording off."""
KEPT = 4
"""Recordings per adapter; they share the memory in which a step computes."""
WARM_UPS = 3
PLAIN = (bool, int, float, str, type(None), Policy, Estimator, torch.dtype)

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


class Unrecordable(Exception):  # noqa: N818 - it is a reason, and no error where nobody insists
    """Why a step cannot be recorded."""


_recordings: WeakKeyDictionary[Adapter, OrderedDict[Hashable, Recording | str]] = WeakKeyDictionary()
_told: set[str] = set()


def fill(static: Given, given: Given) -> None:
    """Copy what is given into tensors that stay where they are."""
    with torch.no_grad():
        for to, value in zip(tree_leaves(static), tree_leaves(given), strict=True):
            to.copy_(value)


def recorded(adapter: Adapter, key: Hashable, given: Given, step: Step, logits: bool) -> Recording:
    """The recording for this key, filled with what is given; it is made if there is none, or raises Unrecordable."""
    kept = _recordings.setdefault(adapter, OrderedDict())
    found = kept.get(key)
    if isinstance(found, str):
        raise Unrecordable(found)
    if found is None:
        while len(kept) >= KEPT:
            kept.popitem(last=False)
        pools = [one.pool for one in kept.values() if isinstance(one, Recording)]
        try:
            # A pool that nothing uses any more cannot be used again.
            found = record(step, given, pools[0] if pools else torch.cuda.graph_pool_handle(), logits)
        except Unrecordable as error:
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


# --- whether ----------------------------------------------------------------------------------------------------------


def switched_off() -> bool:
    """Whether the environment says so."""
    given = os.environ.get(SWITCH, "1")
    if given not in ("0", "1"):
        raise unknown(SWITCH, given, ("0", "1"))
    return given == "0"


def obstacle(adapter: Adapter, images: Tensor) -> str | None:
    """What rules a recording out, as far as one can tell without trying."""
    if switched_off():
        return f"{SWITCH}=0 switches it off."
    if not images.is_cuda:
        return f"the images are on {images.device}, and CUDA graphs need a CUDA device."
    tensors = chain(adapter.model.parameters(), adapter.model.buffers())
    elsewhere = {str(t.device) for t in tensors if t.device != images.device}
    if elsewhere:
        return f"the images are on {images.device}, and parts of the model on {', '.join(sorted(elsewhere))}."
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    watched = [n for n, m in adapter.model.named_modules() if any(getattr(m, kind) for kind in kinds)]
    watched += [n for n, layer in adapter.layers.items() if layer._observers]
    if watched:
        return f"{watched[0] or 'the model'!r} has a hook or an observer, which a recording would not call."
    return None


# --- what a recording depends on --------------------------------------------------------------------------------------


def key_of(adapter: Adapter, given: Given, *options: Hashable) -> Hashable:
    """Everything that the Python code of a step looks at, and where the tensors are that it does not copy."""
    swapped = given.state.keys()
    model = adapter.model
    named = chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
    tensors = tuple((name, _address(t)) for name, t in named if name not in swapped)
    facts = tuple((name, _facts(module)) for name, module in adapter.named_modules(remove_duplicate=False))
    shapes = tuple(_form(t) for t in tree_leaves(given))
    pick = id(adapter.logits) if callable(adapter.logits) else adapter.logits
    stream = torch.cuda.current_stream(given.mine.device).cuda_stream if given.mine.is_cuda else None
    return (options, tuple(swapped), shapes, tensors, facts, pick, stream, settings())


def settings() -> Hashable:
    """The settings of torch, and ours, that decide which kernels run."""
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
    )


def _precisions() -> Hashable:
    backends: Any = torch.backends
    matmul = backends.cuda.matmul
    reduced = (matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction)
    if hasattr(backends.cudnn, "conv"):  # from torch 2.9 on; asking in the old way may be refused
        return (backends.fp32_precision, backends.cudnn.conv.fp32_precision, matmul.fp32_precision, reduced)
    return (backends.cudnn.allow_tf32, matmul.allow_tf32, torch.get_float32_matmul_precision(), reduced)


def _facts(module: torch.nn.Module) -> Hashable:
    """What a module's code may look at: plain values, and tensors that are neither parameters nor buffers."""
    return (type(module), *((name, _fact(v)) for name, v in vars(module).items() if isinstance(v, (*PLAIN, Tensor))))


def _fact(value: Any) -> Hashable:
    return _address(value) if isinstance(value, Tensor) else value


def _address(t: Tensor) -> Hashable:
    return (t.data_ptr(), *_form(t), t.requires_grad)


def _form(t: Tensor) -> tuple[Hashable, ...]:
    return (tuple(t.shape), t.stride(), t.dtype, t.device)


# --- recording --------------------------------------------------------------------------------------------------------


def record(step: Step, given: Given, pool: Any, logits: bool) -> Recording:
    """Run the step a few times, then once more for the record."""
    device = given.mine.device
    with torch.cuda.device(device), _uncached_autocast():
        static = tree_map(torch.empty_like, given)
        fill(static, given)
        here, (side, recorder) = torch.cuda.current_stream(), _streams(torch.cuda.current_device())
        side.wait_stream(here)
        with torch.cuda.stream(side):
            # The first run compiles and chooses kernels, and fails if a plain one would.
            _, value, scores = (t.clone() for t in step(static))
            try:
                with _waiting_refused():
                    for _ in range(WARM_UPS - 1):
                        step(static)
            except RuntimeError as error:
                raise Unrecordable(f"it waits for the GPU: {_line(error)}") from error
            finally:
                here.wait_stream(side)
        kept = torch.empty_like(scores) if logits else None
        value = torch.empty_like(value)
        graph = torch.cuda.CUDAGraph()
        try:
            with _recovering(device, pool), _no_collection():  # noqa: SIM117 - what fails last is put right first
                with torch.cuda.graph(graph, pool=pool, stream=recorder, capture_error_mode="thread_local"):
                    moved, reached, scores = step(static)
                    static.mine.copy_(moved)
                    value.copy_(reached)
                    if kept is not None:
                        kept.copy_(scores)
                    del moved, reached, scores
        except Exception as error:
            raise Unrecordable(_line(error.__context__ or error)) from error
    return Recording(graph, pool, static, value, kept)


@cache
def _streams(device: int) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """To warm up on and to record on; always the same, because cuBLAS keeps memory for every stream it sees."""
    return torch.cuda.Stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


@contextmanager
def _waiting_refused() -> Iterator[None]:
    """Let whatever makes the host wait fail here: within a recording it would leave torch in disorder."""
    before = torch.cuda.get_sync_debug_mode()
    _set_sync_debug_mode(2)
    try:
        yield
    finally:
        _set_sync_debug_mode(before)


def _set_sync_debug_mode(mode: int) -> None:
    with warnings.catch_warnings():  # it says that it may overlook something
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode(mode)


@contextmanager
def _uncached_autocast() -> Iterator[None]:
    """Autocast's copies of weights are gone after its context, and a recording would go on reading them."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Collect garbage now and not during the recording, where an old one must not be destroyed."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _recovering(device: torch.device, pool: Any) -> Iterator[None]:
    """Put right what torch before 2.12 leaves behind when a recording breaks: stream, allocator, random numbers."""
    stream, index = torch.cuda.current_stream(device), torch.cuda.current_device()
    generator = torch.cuda.default_generators[index]
    state = generator.get_state()
    try:
        yield
    except BaseException:
        torch.cuda.set_stream(stream)
        with suppress(Exception):
            torch._C._cuda_endAllocateToPool(index, pool)
        with suppress(Exception):
            fresh = torch.Generator(device)
            fresh.set_state(state)
            generator.graphsafe_set_state(fresh)
        raise
