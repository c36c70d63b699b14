"""Time candidates and BatchNorm in turns.

Times on a shared machine drift. So each candidate takes turns with BatchNorm in one process, and a ratio is of two runs
directly after each other, of which each is the first equally often.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..cuda_graphs import CaptureError, capture, warm_up
from .measurement import TORCH, Candidate, Measurement, use_path

Call = Callable[[], object]
Timer = Callable[[], float]
"""A function that runs a call, possibly several times, and returns the seconds that one run took."""

MIN_SECONDS = 0.005
"""A timed run is repeated until it takes this long, so that the resolution of the clock does not matter."""
MAX_GRAPH_SECONDS = 0.02
"""A captured graph contains repetitions up to this length."""


# --- clocks -----------------------------------------------------------------------------------------------------------


def synchronizer(device: str) -> Callable[[], None]:
    """Return a function that waits until a device has finished its work."""
    functions = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}
    return functions.get(torch.device(device).type, lambda: None)


def wall_timer(
    call: Call, wait: Callable[[], None] = lambda: None, repeats: int = 1, clock: Timer = time.perf_counter
) -> Timer:
    """Return a timer by wall clock: from the first of ``repeats`` calls until the device has finished the last."""

    def measure() -> float:
        wait()
        start = clock()
        for _ in range(repeats):
            call()
        wait()
        return (clock() - start) / repeats

    return measure


def warm_wall_timer(call: Call, wait: Callable[[], None], path: str, clock: Timer = time.perf_counter) -> Timer:
    """Warm a call up on one path, and return a timer by wall clock with enough repetitions for ``MIN_SECONDS``."""
    once = wall_timer(call, wait, clock=clock)
    with use_path(path):
        first = once()
        repeats = 1 if first > 10 * MIN_SECONDS else repeats_for(MIN_SECONDS, once())
    repeated = wall_timer(call, wait, repeats, clock)

    def measure() -> float:
        with use_path(path):
            return repeated()

    return measure


def repeats_for(total: float, single: float, most: int = 50) -> int:
    """Return how often to repeat a run of ``single`` seconds so that all runs take ``total`` seconds.

    >>> repeats_for(0.005, 0.002), repeats_for(0.005, 3.0), repeats_for(0.005, 1e-9)
    (3, 1, 50)
    """
    return max(1, min(most, math.ceil(total / max(single, 1e-9))))


def graph_timer(call: Call, path: str) -> Timer:
    """Capture repetitions in a CUDA graph, and return a timer of its replay by the device's clock.

    That is the work of the device alone, without the time for launching kernels.
    """
    with use_path(path):
        warm_up(call)
        once = wall_timer(call, torch.cuda.synchronize)
        repeats = max(1, min(20, int(MAX_GRAPH_SECONDS / once())))

        def repeat(_: object) -> None:
            for _ in range(repeats):
                call()

        device = torch.zeros((), device="cuda")  # says on which device; a captured function has at least one tensor
        graph = capture(repeat, [device], torch.cuda.graph_pool_handle())

    def replay(count: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        for _ in range(count):
            graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / (count * repeats)

    replay(1)
    count = repeats_for(MIN_SECONDS, replay(1) * repeats)
    return lambda: replay(count)


# --- comparison -------------------------------------------------------------------------------------------------------


def interleave(
    batch_norm: Timer, candidates: Sequence[Timer], rounds: Sequence[int]
) -> list[tuple[list[float], list[float]]]:
    """Run candidates and BatchNorm in turns, and return each candidate's times and BatchNorm's beside them.

    A round of one candidate is four runs: BatchNorm, the candidate, the candidate, BatchNorm.

    Args:
        batch_norm: the timer of BatchNorm.
        candidates: the timers to compare with it.
        rounds: how many rounds each candidate has.
    """
    times: list[tuple[list[float], list[float]]] = [([], []) for _ in candidates]
    for number in range(max(rounds, default=0)):
        for candidate, count, (candidate_times, batch_norm_times) in zip(candidates, rounds, times, strict=True):
            if number < count:
                batch_norm_times.append(batch_norm())
                candidate_times.extend((candidate(), candidate()))
                batch_norm_times.append(batch_norm())
    return times


def compare(
    part: str,
    case: Mapping[str, Any],
    batch_norm: Call,
    candidates: Sequence[Candidate],
    rounds: Callable[[str], int],
    device: str,
    *,
    graphs: bool = False,
) -> list[Measurement]:
    """Time every candidate beside BatchNorm, by wall clock and, with ``graphs``, by replaying CUDA graphs.

    Args:
        part: the name of the part.
        case: what is measured.
        batch_norm: the same work with BatchNorm.
        candidates: what to compare with it.
        rounds: returns the number of rounds for a path.
        device: where it runs.
        graphs: measure replayed CUDA graphs too.
    """
    wait = synchronizer(device)
    timers: dict[str, Callable[[Call, str], Timer]] = {"wall": lambda call, path: warm_wall_timer(call, wait, path)}
    if graphs:
        timers["graph"] = graph_timer
    measurements: list[Measurement] = []
    for clock, make_timer in timers.items():
        rows = [Measurement(part, dict(case), c.estimator, c.path, clock) for c in candidates]
        measurements += rows
        try:
            batch_norm_timer = make_timer(batch_norm, TORCH)
        except (CaptureError, torch.cuda.OutOfMemoryError) as error:
            for row in rows:
                row.note = f"BatchNorm: {_reason(error)}"
            continue
        ready: list[tuple[Measurement, Timer]] = []
        for row, candidate in zip(rows, candidates, strict=True):
            try:
                ready.append((row, make_timer(candidate.call, candidate.path)))
            except (CaptureError, torch.cuda.OutOfMemoryError) as error:
                row.note = _reason(error)
        times = interleave(batch_norm_timer, [timer for _, timer in ready], [rounds(row.path) for row, _ in ready])
        for (row, _), (candidate_times, batch_norm_times) in zip(ready, times, strict=True):
            row.values, row.batch_norm = candidate_times, batch_norm_times
    return measurements


def _reason(error: Exception) -> str:
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, torch.cuda.OutOfMemoryError):
            return "out of memory"
        chain = chain.__cause__ or chain.__context__
    return f"cannot be captured in a CUDA graph ({error})"
