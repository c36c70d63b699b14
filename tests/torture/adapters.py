"""Adapters: files of their state, threads that share one, and exceptions in the middle of a call."""

from __future__ import annotations

import functools
import gc
import io
import itertools
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

import medbn

from ..methods.conftest import small_model
from ..methods.table import METHODS, assert_same, make, state
from .alter import alter_bytes, alter_value
from .trials import BrokenPromiseError, attempt, kind, require


def _batches(rng: random.Random, count: int, images: int = 12) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(rng.randrange(2**31))
    return [torch.randn(images, 3, 8, 8, generator=g) + 0.5 for _ in range(count)]


def _adapter(rng: random.Random, method: str) -> medbn.methods.Adapter:
    return make(
        small_model(), method, rng.choice(["median", "image_median@0.5"]), predict=rng.choice(["before", "after"])
    )


def _same(first: dict[str, object], second: dict[str, object]) -> bool:
    try:
        assert_same(first, second)
    except AssertionError:
        return False
    return True


def _require_service(adapter: medbn.methods.Adapter, when: str) -> None:
    """Require that an adapter predicts finite numbers, now, after another call and after ``reset``."""
    images = _batches(random.Random(0), 1)[0]
    for _ in range(2):
        require(bool(adapter(images).isfinite().all()), f"predictions are not finite {when}")
    adapter.reset()
    require(bool(adapter(images).isfinite().all()), f"predictions are not finite {when} and reset()")


@functools.cache
def _saved(method: str) -> bytes:
    adapter = make(small_model(), method)
    for images in _batches(random.Random(method), 3):
        adapter(images)
    buffer = io.BytesIO()
    torch.save(adapter.state_dict(), buffer)
    return buffer.getvalue()


@kind("states", 3000)
def load_a_state(rng: random.Random, folder: Path) -> str:
    """An altered state of an adapter is refused and changes nothing, or is loaded and serves finite predictions."""
    method = rng.choice(list(METHODS))
    content = _saved(method)
    if rng.random() < 0.15:
        content = alter_bytes(rng, content)
        try:
            value = torch.load(io.BytesIO(content), weights_only=True)
        except Exception:  # of many types; the file does not reach the adapter
            return "refused by torch.load"
    else:
        value = torch.load(io.BytesIO(content), weights_only=True)
        extra = next((key for key in value if key.endswith("_extra_state")), None)
        if extra is not None and rng.random() < 0.8:
            value[extra] = alter_value(rng, value[extra])
        else:
            value = alter_value(rng, value)
    adapter = make(small_model(), method)
    adapter(_batches(rng, 1)[0])
    before, weights = state(adapter), {k: v.clone() for k, v in adapter.model.state_dict().items()}
    # torch itself lists missing and unexpected names over several lines.
    done, _ = attempt(lambda: adapter.load_state_dict(value), ValueError, TypeError, RuntimeError, one_line=False)
    if not done:
        require(_same(before, state(adapter)), "a refused state changed what adapts")
        after = adapter.model.state_dict()
        require(all(torch.equal(v, after[k]) for k, v in weights.items()), "a refused state changed the model")
    _require_service(adapter, "after the file was loaded" if done else "after a refusal")
    return "loaded" if done else "refused"


@functools.cache
def _file(method: str) -> bytes:
    adapter = make(small_model(), method)
    for images in _batches(random.Random(method), 3):
        adapter(images)
    with tempfile.TemporaryDirectory() as folder:
        adapter.save(Path(folder) / "state")
        return (Path(folder) / "state").read_bytes()


@kind("state-files", 2000)
def load_a_state_file(rng: random.Random, folder: Path) -> str:
    """An altered file of a state is refused in one line and changes nothing, or has the same state in it."""
    method = rng.choice(list(METHODS))
    path = folder / "state.safetensors"
    path.write_bytes(_file(method))
    saved, adapter = make(small_model(), method), make(small_model(), method)
    saved.load(path)
    adapter(_batches(rng, 1)[0])
    before = state(adapter)
    path.write_bytes(alter_bytes(rng, _file(method)))
    done, _ = attempt(lambda: adapter.load(path), ValueError)
    expected = state(saved) if done else before
    require(_same(expected, state(adapter)), "another state was loaded" if done else "a refused file changed something")
    return "as saved" if done else "refused"


@kind("threads", 200)
def share_an_adapter(rng: random.Random, folder: Path) -> str:
    """Threads that call one adapter get the bits of calls one after the other, in some order."""
    method = rng.choice(list(METHODS))
    adapter = _adapter(rng, method)
    batches = _batches(rng, 3)
    start = adapter.snapshot()
    orders = []
    for order in itertools.permutations(range(3)):
        adapter.restore(start)
        outputs = {index: adapter(batches[index]) for index in order}
        orders.append((outputs, state(adapter)))
    adapter.restore(start)
    barrier, results, errors = threading.Barrier(3), {}, []

    def call(index: int) -> None:
        barrier.wait()
        try:
            results[index] = adapter(batches[index])
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=call, args=(index,)) for index in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    if errors:
        raise BrokenPromiseError(f"{method}: {type(errors[0]).__name__}: {errors[0]}")
    now = state(adapter)
    for outputs, after in orders:
        if all(torch.equal(results[index], outputs[index]) for index in range(3)) and _same(now, after):
            return "as one after the other"
    raise BrokenPromiseError(f"{method}: no order of the calls gives these predictions and this state")


class _InterruptError(BaseException):
    """Raised in the middle of a call by a signal, as KeyboardInterrupt is."""


@kind("interrupts", 700)
def interrupt_a_call(rng: random.Random, folder: Path) -> str:
    """A call that an exception stops at any moment has changed nothing, or is complete; the next calls are as ever."""
    method = rng.choice(list(METHODS))
    adapter = _adapter(rng, method)
    history, images = _batches(rng, 2)
    adapter(history)
    start = adapter.snapshot()
    before = state(adapter)
    began = time.perf_counter()
    expected = adapter(images)
    seconds = time.perf_counter() - began
    complete = state(adapter)
    adapter.restore(start)

    def stop(*_: object) -> None:
        raise _InterruptError

    previous = signal.signal(signal.SIGALRM, stop)
    stopped = False
    gc.disable()  # Python loses what is raised in a callback of the garbage collector; Hypothesis has one
    try:
        signal.setitimer(signal.ITIMER_REAL, max(1e-6, seconds * rng.triangular(0, 1.1, 1)))
        try:
            adapter(images)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except _InterruptError:
        stopped = True
    finally:
        gc.enable()
        signal.signal(signal.SIGALRM, previous)
    now = state(adapter)
    changed = not _same(now, before)
    require(not changed or _same(now, complete), f"{method}: half a call")
    adapter.restore(start)
    require(torch.equal(adapter(images), expected), f"{method}: another prediction after an interruption")
    require(_same(state(adapter), complete), f"{method}: another state after an interruption")
    return ("stopped" if not changed else "stopped when complete") if stopped else "complete"
