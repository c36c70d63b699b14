"""The estimate of how long a recipe takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from medbn.bench import recipes
from medbn.bench.time_estimate import estimate_seconds, format_duration, shortest_time


def test_estimates_grow_with_the_work(tiny):
    base = estimate_seconds(tiny, 1e9)
    assert estimate_seconds(replace(tiny, batches=1), 1e9) < base
    assert estimate_seconds(replace(tiny, attacks=(replace(tiny.attacks[0], steps=20),)), 1e9) > 3 * base
    assert estimate_seconds(recipes.get("targeted-instant"), 1e9) > 1000 * base
    assert format_duration(100) == "2 min"


def test_a_busy_moment_is_not_measured(monkeypatch):
    """For 0.3 seconds another program has the cores."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def work():
        now[0] += 0.006 if now[0] < 0.3 else 0.001

    assert shortest_time(work) == pytest.approx(0.001)
    assert now[0] < 0.6
