"""Measuring two things side by side: turns, clocks, ratios.

Whatever else a machine does, it does to everybody: candidates take turns with BatchNorm, and a ratio is of two runs
that stood next to each other, each of them first as often as the other.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import kernels

Call = Callable[[], object]
Timed = Callable[[], float]
"""Runs something and returns the seconds that one run of it took."""

FORCED = "MEDBN_KERNELS"
TORCH = "torch"
"""The path of ``mean``, which is torch's own kernel."""
SETTLED, LONGEST = 0.005, 0.02
"""Seconds that a timed run should last at least, and that one captured graph should last at most."""


@dataclass
class Row:
    """One candidate against BatchNorm in one situation, with everything that was measured."""

    part: str
    where: dict[str, Any]
    """The situation: shape, layout, direction, method, and what else there is."""
    estimator: str
    path: str
    clock: str
    """``"wall"``; ``"graph"``, the device's own time for replaying a CUDA graph; ``"bytes"`` of memory."""
    values: list[float] = field(default_factory=list)
    """Seconds, or bytes, one for each ratio."""
    base: list[float] = field(default_factory=list)
    """BatchNorm's, beside them."""
    note: str = ""
    """Why there is no number, where there is none."""

    @property
    def ratios(self) -> list[float]:
        """The candidate over the BatchNorm beside it."""
        return [value / base for value, base in zip(self.values, self.base, strict=True)]

    def record(self) -> dict[str, Any]:
        """For JSON."""
        found = asdict(self)
        unit = "bytes" if self.clock == "bytes" else "seconds"
        numbers = {unit: found.pop("values"), f"batch_norm_{unit}": found.pop("base"), "ratios": self.ratios}
        short = {name: [float(f"{value:.6g}") for value in values] for name, values in numbers.items()}
        return {**found.pop("where"), **found, **short}


class Spread(NamedTuple):
    """The quartiles of some ratios."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value.

        >>> Spread.of([1.0, 2.0, 3.0, 4.0, 5.0])
        Spread(low=2.0, middle=3.0, high=4.0)
        """
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        return cls(*statistics.quantiles(values, n=4, method="inclusive"))


def geometric_mean(values: Sequence[float]) -> float:
    """The average of ratios.

    >>> geometric_mean([0.5, 2.0])
    1.0
    """
    return math.exp(statistics.fmean(math.log(value) for value in values))


# --- paths ------------------------------------------------------------------------------------------------------------


class Candidate(NamedTuple):
    """Something to measure, and the path that it takes."""

    estimator: str
    path: str
    call: Call


def paths(x: Tensor, estimator: str, reference: bool = True) -> list[str]:
    """The path that is selected for this input, and the reference path where that is another and wanted."""
    if estimator == "mean":
        return [TORCH]
    found = kernels.selected(x, estimator)
    return list(dict.fromkeys((found, "reference"))) if reference else [found]


@contextmanager
def using(path: str) -> Iterator[None]:
    """Force the reference path; any other is what is selected anyway."""
    before = os.environ.get(FORCED)
    if path == "reference":
        os.environ[FORCED] = path
    try:
        yield
    finally:
        if path == "reference":
            os.environ.pop(FORCED)
            if before is not None:
                os.environ[FORCED] = before


# --- clocks -----------------------------------------------------------------------------------------------------------


class UncapturableError(RuntimeError):
    """Something cannot be captured in a CUDA graph."""


def waiting(device: str) -> Callable[[], None]:
    """A function that returns when the device has done all it was told."""
    kind = torch.device(device).type
    known = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}
    return known.get(kind, lambda: None)


def wall(
    call: Call, wait: Callable[[], None] = lambda: None, repeats: int = 1, clock: Timed = time.perf_counter
) -> Timed:
    """By the clock on the wall, from telling the device to having it all done; ``repeats`` calls on end."""

    def timed() -> float:
        wait()
        start = clock()
        for _ in range(repeats):
            call()
        wait()
        return (clock() - start) / repeats

    return timed


def settled(call: Call, wait: Callable[[], None], path: str, clock: Timed = time.perf_counter) -> Timed:
    """``wall`` on one path, warmed up, with as many repeats as it takes for the clock's grain not to matter."""
    once = wall(call, wait, clock=clock)
    with using(path):
        first = once()
        repeats = 1 if first > 10 * SETTLED else times(SETTLED, once())
    several = wall(call, wait, repeats, clock)

    def timed() -> float:
        with using(path):
            return several()

    return timed


def times(wanted: float, single: float, most: int = 50) -> int:
    """How often something that takes ``single`` seconds is to be repeated to last as long as ``wanted``.

    >>> times(0.005, 0.002), times(0.005, 3.0), times(0.005, 1e-9)
    (3, 1, 50)
    """
    return max(1, min(most, math.ceil(wanted / max(single, 1e-9))))


def replayed(call: Call, path: str) -> Timed:
    """By the device's own clock: repetitions captured in a CUDA graph and replayed, so that no launch is waited for."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with using(path):
        with torch.cuda.stream(side):
            for _ in range(3):  # whatever is compiled, tuned or allocated once, before the capture
                call()
        torch.cuda.current_stream().wait_stream(side)
        once = wall(call, torch.cuda.synchronize)
        inside = max(1, min(20, int(LONGEST / once())))
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                for _ in range(inside):
                    call()
        except RuntimeError as error:
            raise UncapturableError(_first_line(error)) from None

    def replay(count: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        for _ in range(count):
            graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / (count * inside)

    replay(1)
    count = times(SETTLED, replay(1) * inside)
    return lambda: replay(count)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


# --- turns ------------------------------------------------------------------------------------------------------------


def interleave(
    base: Timed, candidates: Sequence[Timed], rounds: Sequence[int]
) -> list[tuple[list[float], list[float]]]:
    """Each candidate's times and the base's beside them: two of each for every round, base first and then last."""
    found: list[tuple[list[float], list[float]]] = [([], []) for _ in candidates]
    for turn in range(max(rounds, default=0)):
        for candidate, wanted, (ours, theirs) in zip(candidates, rounds, found, strict=True):
            if turn < wanted:
                theirs.append(base())
                ours.extend((candidate(), candidate()))
                theirs.append(base())
    return found


def compare(
    part: str,
    where: Mapping[str, Any],
    base: Call,
    candidates: Sequence[Candidate],
    rounds: Callable[[str], int],
    device: str,
    *,
    graphs: bool = False,
) -> list[Row]:
    """Every candidate against the base, by the clock on the wall and, with ``graphs``, by replaying CUDA graphs.

    ``rounds`` says how many there are for a path.
    """
    wait = waiting(device)
    clocks: dict[str, Callable[[Call, str], Timed]] = {"wall": lambda call, path: settled(call, wait, path)}
    if graphs:
        clocks["graph"] = replayed
    found: list[Row] = []
    for clock, timer in clocks.items():
        rows = [Row(part, dict(where), c.estimator, c.path, clock) for c in candidates]
        ready: list[tuple[Row, Timed]] = []
        try:
            beside = timer(base, TORCH)
        except (UncapturableError, torch.cuda.OutOfMemoryError) as error:
            for row in rows:
                row.note = f"BatchNorm: {_why(error)}"
        else:
            for row, candidate in zip(rows, candidates, strict=True):
                try:
                    ready.append((row, timer(candidate.call, candidate.path)))
                except (UncapturableError, torch.cuda.OutOfMemoryError) as error:
                    row.note = _why(error)
            turns = interleave(beside, [timed for _, timed in ready], [rounds(row.path) for row, _ in ready])
            for (row, _), (ours, theirs) in zip(ready, turns, strict=True):
                row.values, row.base = ours, theirs
        found += rows
    return found


def _why(error: Exception) -> str:
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "out of memory"
    return f"cannot be captured in a CUDA graph ({error})"
