"""Rounds, ratios, clocks and paths, with a simulated clock."""

from __future__ import annotations

import os
from itertools import pairwise

import pytest
import torch

from medbn import kernels
from medbn.cuda_graphs import CaptureError
from medbn.speed import timing
from medbn.speed.measurement import KERNELS_VARIABLE, Candidate, Measurement, Quartiles, paths, use_path
from medbn.speed.timing import compare, interleave, wall_timer, warm_wall_timer


class Clock:
    """A clock that only its own calls advance."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def taking(self, seconds, log=None, name=""):
        def call():
            self.now += seconds
            if log is not None:
                log.append(name)

        return call


def test_candidate_and_batch_norm_take_turns_and_each_is_first_equally_often():
    log = []

    def timed(name, seconds):
        return lambda: log.append(name) or seconds

    measured = interleave(timed("base", 2.0), [timed("a", 3.0), timed("b", 1.0)], [2, 1])
    assert log == ["base", "a", "a", "base", "base", "b", "b", "base", "base", "a", "a", "base"]
    assert measured == [([3.0] * 4, [2.0] * 4), ([1.0] * 2, [2.0] * 2)]


@pytest.mark.parametrize("rounds", [[1], [3, 1], [1, 4, 2], [2, 2, 1, 3]])
def test_every_ratio_is_of_two_runs_directly_after_each_other(rounds):
    count = iter(range(1000))
    order = []  # a run's time is its place in the order

    def timed():
        order.append(float(next(count)))
        return order[-1]

    measured = interleave(timed, [timed] * len(rounds), rounds)
    assert [len(times) for times, _ in measured] == [2 * n for n in rounds]
    for times, batch_norm_times in measured:
        assert all(abs(a - b) == 1 for a, b in zip(times, batch_norm_times, strict=True))
        assert sum(a < b for a, b in zip(times, batch_norm_times, strict=True)) == len(times) / 2
    assert all(b - a == 1 for a, b in pairwise(order))


def test_a_machine_that_slows_down_does_not_change_a_ratio():
    speed = iter([1, 1, 4, 4] * 10)
    measured = interleave(lambda: 2.0 * next(speed), [lambda: 3.0 * next(speed)], [4])
    row = Measurement("layer", {}, "median", "c", "wall", *measured[0])
    assert row.ratios == [1.5] * 8
    assert len(set(row.values)) == 2


def test_quartiles_are_those_of_numpy():
    import numpy as np

    values = torch.rand(17, dtype=torch.float64).tolist()
    assert Quartiles.of(values) == pytest.approx(tuple(np.quantile(values, [0.25, 0.5, 0.75])))
    assert Quartiles.of([3.0]) == (3.0, 3.0, 3.0)


def test_the_wall_clock_waits_for_the_device_before_and_after():
    clock, log = Clock(), []
    timer = wall_timer(clock.taking(0.25, log, "call"), clock.taking(1.0, log, "wait"), repeats=2, clock=clock)
    assert timer() == (0.5 + 1.0) / 2  # the first wait is not counted, the second is
    assert log == ["wait", "call", "call", "wait"]


@pytest.mark.parametrize(("seconds", "warm", "repeats"), [(0.001, 2, 5), (0.004, 2, 2), (1.0, 1, 1), (1e-6, 2, 50)])
def test_short_calls_are_repeated_until_the_clock_is_fine_enough(seconds, warm, repeats):
    clock, log = Clock(), []
    timer = warm_wall_timer(clock.taking(seconds, log, "call"), lambda: None, "c", clock)
    assert len(log) == warm
    assert timer() == pytest.approx(seconds)
    assert len(log) == warm + repeats


def test_the_reference_path_is_forced_and_the_variable_restored(monkeypatch):
    x = torch.zeros(2, 3, 4, 4)
    monkeypatch.delenv(KERNELS_VARIABLE, raising=False)
    selected = kernels.selected(x)
    seen = {}

    def noting(path):
        return Candidate("median", path, lambda: seen.setdefault(path, set()).add(kernels.selected(x)))

    compare("layer", {}, lambda: None, [noting("auto"), noting("reference")], lambda path: 1, "cpu")
    assert seen == {"auto": {selected}, "reference": {"reference"}}
    assert KERNELS_VARIABLE not in os.environ
    monkeypatch.setenv(KERNELS_VARIABLE, "auto")
    with pytest.raises(KeyError), use_path("reference"):
        {}[os.environ[KERNELS_VARIABLE]]
    assert os.environ[KERNELS_VARIABLE] == "auto"


def test_paths_are_the_selected_one_and_the_reference(monkeypatch):
    x = torch.zeros(2, 3, 4, 4)
    monkeypatch.setattr(kernels, "selected", lambda x, name: "c" if name == "median" else "reference")
    assert paths(x, "median") == ["c", "reference"]
    assert paths(x, "median", reference=False) == ["c"]
    assert paths(x, "mad") == ["reference"]
    assert paths(x, "mean") == ["torch"]


def test_a_note_says_what_cannot_be_captured_and_wall_time_remains(monkeypatch):
    def replayed(call, path):
        if path == "reference":
            raise CaptureError("operation not permitted when stream is capturing")
        return lambda: 2.0

    monkeypatch.setattr(timing, "graph_timer", replayed)
    candidates = [Candidate("median", path, lambda: None) for path in ("triton", "reference")]
    rows = compare("layer", {}, lambda: None, candidates, lambda path: 3, "cpu", graphs=True)
    assert [(row.clock, row.path, len(row.values)) for row in rows] == [
        ("wall", "triton", 6),
        ("wall", "reference", 6),
        ("graph", "triton", 6),
        ("graph", "reference", 0),
    ]
    assert rows[2].ratios == [1.0] * 6
    assert "not permitted" in rows[3].note
    monkeypatch.setattr(timing, "graph_timer", lambda call, path: replayed(call, "reference"))
    rows = compare("layer", {}, lambda: None, candidates, lambda path: 3, "cpu", graphs=True)
    assert all(row.note.startswith("BatchNorm: ") and not row.values for row in rows[2:])


@pytest.mark.gpu
def test_a_replayed_graph_does_the_work():
    x = torch.zeros(1, device="cuda")
    timed = timing.graph_timer(lambda: x.add_(1), "triton")
    before = x.item()
    assert timed() > 0
    assert x.item() > before
