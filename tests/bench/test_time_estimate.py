"""The estimate of how long a recipe takes."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from medbn.bench import recipes, time_estimate
from medbn.bench.time_estimate import calibrate, describe_duration, estimate_seconds, gpu_hours, shortest_time
from medbn.cli import main


def test_estimates_grow_with_the_work(tiny):
    base = estimate_seconds(tiny, 1e9)
    assert estimate_seconds(replace(tiny, batches=1), 1e9) < base
    assert estimate_seconds(replace(tiny, attacks=(replace(tiny.attacks[0], steps=20),)), 1e9) > 3 * base
    assert estimate_seconds(recipes.get("targeted-instant"), 1e9) > 1000 * base
    assert describe_duration(100, "cpu", 1e9) == "2 min"


def test_smaller_images_take_less_time():
    streets = recipes.get("segmentation-targeted").narrow(batches=2)
    large, small = (estimate_seconds(streets.narrow(size=size), 1e9) for size in ((512, 1024), (256, 512)))
    assert large == pytest.approx(4 * small, rel=0.05)
    assert estimate_seconds(streets.narrow(data=["scenes"]), 1e9) < small / 20


def test_a_busy_moment_is_not_measured(monkeypatch):
    """For 0.3 seconds another program has the cores."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def work():
        now[0] += 0.006 if now[0] < 0.3 else 0.001

    assert shortest_time(work) == pytest.approx(0.001)
    assert now[0] < 0.6


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Speeds that are measured one after the other, on a machine that is idle, and an empty cache folder."""
    speeds = [3e9, 5e9, 4e9]
    monkeypatch.setattr("medbn.data.cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(time_estimate, "measure_speed", lambda device: speeds.pop(0))
    monkeypatch.setattr(time_estimate, "_is_busy", lambda: False)
    return tmp_path / "cache" / "calibration.json"


def test_a_speed_is_measured_once(cache):
    assert [calibrate("cpu"), calibrate("cpu")] == [3e9, 3e9]


def test_a_speed_of_a_busy_machine_is_measured_again_and_the_highest_counts(cache, monkeypatch):
    monkeypatch.setattr(time_estimate, "_is_busy", lambda: True)
    assert [calibrate("cpu"), calibrate("cpu"), calibrate("cpu")] == [3e9, 5e9, 5e9]


@pytest.mark.parametrize("content", ["", "[]", "3", '{"a": 1}', "\0" * 100])
def test_an_unreadable_calibration_is_measured_again(content, cache):
    cache.parent.mkdir()
    cache.write_text(content)
    assert calibrate("cpu") == 3e9
    assert calibrate("cpu") == 3e9


def test_a_recipe_of_years_is_given_in_gpu_hours():
    seconds = 200 * 365 * 86400.0
    hours = seconds * 3e9 / time_estimate.GPU_SPEED / 3600
    assert gpu_hours(seconds, "cpu", 3e9) == pytest.approx(hours)
    assert describe_duration(seconds, "cpu", 3e9) == f"too long here, about {hours:,.0f} GPU-hours"
    assert describe_duration(8 * 86400.0, "cuda", 3e9) == "too long here, about 192 GPU-hours"


def test_hours_on_a_gpu_are_those_of_one_measurement_on_a_busy_machine(cache, monkeypatch, capsys):
    """A second measurement would be another one; hours on a GPU depend on none."""
    monkeypatch.setattr(time_estimate, "_is_busy", lambda: True)
    shown = []
    for _ in range(2):
        assert main(["recipes", "worst-case"]) == 0
        shown.append(re.search(r"about .* GPU-hours", capsys.readouterr().out)[0])
    assert shown[0] == shown[1]
