"""Work recorded once on a GPU as a CUDA graph, and played back: the same numbers, without a launch to wait for.

What is recorded reads and writes tensors that stay where they are; whoever plays it back fills them and copies from
them. What the Python code looks at on the way is not looked at again, so whoever records has to know what that is.
"""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ._errors import unknown_name
from .estimators import Estimator
from .policies import Policy

SWITCH = "MEDBN_GRAPHS"
"""The environment variable that, if "0", switches recording off."""
WARM_UPS = 3
PLAIN = (bool, int, float, str, type(None), Policy, Estimator, torch.dtype)
"""Values that code looks at, and that are what they are."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

T = TypeVar("T")


class CaptureError(Exception):
    """Why something cannot be recorded."""


# --- whether ----------------------------------------------------------------------------------------------------------


def switched_off() -> bool:
    """Whether the environment says so."""
    given = os.environ.get(SWITCH, "1")
    if given not in ("0", "1"):
        raise unknown_name(SWITCH, given, ("0", "1"))
    return given == "0"


def obstacle(model: nn.Module, inputs: Iterable[Tensor]) -> str | None:
    """What rules a recording of the model out, as far as one can tell without trying."""
    if switched_off():
        return f"{SWITCH}=0 switches it off."
    inputs = list(inputs)
    for t in inputs:
        if not t.is_cuda:
            return f"the images are on {t.device}, and CUDA graphs need a CUDA device."
    here = {str(t.device) for t in inputs}
    elsewhere = {str(t.device) for t in chain(model.parameters(), model.buffers())} - here
    if elsewhere or len(here) > 1:
        return f"the images are on {_listed(here)}, and parts of the model on {_listed(elsewhere or here)}."
    watched = [n for n, m in model.named_modules() if any(getattr(m, kind) for kind in HOOKS)]
    watched += [n for n, m in model.named_modules() if getattr(m, "_observers", ())]
    if watched:
        return f"{watched[0] or 'the model'!r} has a hook or an observer, which a recording would not call."
    return None


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))


# --- what a recording depends on --------------------------------------------------------------------------------------


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


def form(t: Tensor) -> tuple[Hashable, ...]:
    """What a tensor is, but for its values and where they are."""
    return (tuple(t.shape), t.stride(), t.dtype, t.device)


# --- recording --------------------------------------------------------------------------------------------------------


def warm_up(run: Callable[[], T]) -> T:
    """What it returns the first time; then it is run some more, to see that it does not wait for the GPU."""
    here, (side, _) = torch.cuda.current_stream(), _streams(torch.cuda.current_device())
    side.wait_stream(here)
    try:
        with torch.cuda.stream(side):
            # The first run compiles and chooses kernels, and fails if a plain one would.
            result = run()
            try:
                with _waiting_refused():
                    for _ in range(WARM_UPS - 1):
                        run()
            except RuntimeError as error:
                raise CaptureError(f"it waits for the GPU: {line(error)}") from error
    finally:
        here.wait_stream(side)
    return result


def recorded(run: Callable[[], T], pool: Any) -> tuple[Any, T]:
    """Run it for the record: the graph, and what it returned, whose tensors every replay writes."""
    _, recorder = _streams(torch.cuda.current_device())
    graph = torch.cuda.CUDAGraph()
    try:
        with _recovering(pool), _no_collection():  # noqa: SIM117 - what fails last is put right first
            with torch.cuda.graph(graph, pool=pool, stream=recorder, capture_error_mode="thread_local"):
                result = run()
    except Exception as error:
        raise CaptureError(line(error.__context__ or error)) from error
    return graph, result


@contextmanager
def uncached_autocast() -> Iterator[None]:
    """Autocast's copies of weights are gone after its context, and a recording would go on reading them."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def line(error: BaseException) -> str:
    """What an error says, in a line."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


@cache
def _streams(device: int) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """To warm up on and to record on; always the same, because cuBLAS keeps memory for every stream it sees."""
    return torch.cuda.Stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


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
def _recovering(pool: Any) -> Iterator[None]:
    """Put right what torch before 2.12 leaves behind when a recording breaks: stream, allocator, random numbers."""
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
