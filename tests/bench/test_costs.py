"""Plans from measured costs: what was measured is taken as it is, and the rest is scaled."""

from __future__ import annotations

import json
import lzma
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from medbn import bench
from medbn.bench import costs, recipes
from medbn.bench.costs import Cost
from medbn.bench.time_estimate import forward_operations
from medbn.cli import main

ROOT = Path(__file__).parents[2]
OPERATIONS = 200 * forward_operations("resnet26", 3, 32, 32)
TABLE = (
    Cost("G", "resnet26", 200, OPERATIONS, "tebn", "median", "", 0.5, 20),
    Cost("G", "resnet26", 200, OPERATIONS, "tebn", "median", None, 0.25, 20),
    Cost("G", "resnet26", 200, OPERATIONS, None, "median", "exact", 0.125, 20),
)


@pytest.fixture
def cell():
    recipe = recipes.get("targeted-instant").narrow(data=["cifar10-c"], methods=["tebn"], estimators=["median"])
    return next(iter(recipe.cells()))


def test_what_was_measured_is_taken_as_it_is(cell):
    one = costs.estimate(cell, 50, 49, device="G", table=TABLE)
    assert one.seconds == pytest.approx(50 * 0.5 + 49 * 100 * 0.125)
    assert one.measured == pytest.approx(one.seconds)
    clean = costs.estimate(replace(cell, attack=None), 50, 0, device="G", table=TABLE)
    assert clean.seconds == pytest.approx(50 * 0.25)


def test_other_models_and_methods_are_scaled_and_said_to_be(cell):
    other = replace(cell, setting=replace(cell.setting, batch_size=100), method="tent")
    one = costs.estimate(other, 50, 50, device="G", table=TABLE)
    assert one.seconds == pytest.approx((50 * 0.5 + 50 * 100 * 0.125) / 2)
    assert one.measured == 0
    with pytest.raises(ValueError, match="nothing for 'H'"):
        costs.estimate(cell, 1, 1, device="H", table=TABLE)


@pytest.mark.parametrize("name", ["malicious-targeted", "targeted-instant"])
def test_more_gpus_are_faster_until_the_longest_task(name):
    recipe = recipes.get(name).narrow(data=["cifar10-c"], methods=["tebn", "tent"])
    plans = {gpus: bench.plan(recipe, gpus, device="G", table=TABLE) for gpus in (1, 8, 64, 10_000)}
    one = plans[1]
    assert one.streams == len(list(recipe.cells()))
    assert one.seconds == pytest.approx(one.gpu_seconds)
    for gpus, found in plans.items():
        assert found.gpu_seconds == pytest.approx(one.gpu_seconds)
        assert max(one.gpu_seconds / gpus, one.longest) <= found.seconds * (1 + 1e-9)
        assert found.seconds <= one.gpu_seconds / gpus + one.longest
    assert plans[10_000].seconds == pytest.approx(one.longest)


def test_the_command_shows_a_plan(capsys):
    assert main(["recipes", "malicious-targeted", "--plan", "8"]) == 0
    row = capsys.readouterr().out.splitlines()[-5].split()
    found = bench.plan(recipes.get("malicious-targeted"), 8)
    assert row[:2] == ["malicious-targeted"] * 2
    assert [float(number) for number in row[4:7]] == [
        round(seconds / 3600, 2) for seconds in (found.gpu_seconds, found.seconds, found.longest)
    ]


@pytest.mark.slow
def test_the_shipped_table_is_that_of_the_committed_results(tmp_path, monkeypatch):
    """Its rows come from the stores; and its estimates of their streams are what they have taken."""
    packed = ROOT / "results" / "cifar10-c.db.xz"
    out = tmp_path / "costs.json"
    monkeypatch.setattr(sys, "argv", ["costs.py", str(packed), "--out", str(out)])
    monkeypatch.syspath_prepend(ROOT / "experiments")
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(ROOT / "experiments" / "costs.py"), run_name="__main__")
    assert stop.value.code == 0
    made = [Cost(**row) for row in json.loads(out.read_text())["costs"]]
    assert made
    assert set(made) <= set(costs.shipped())

    store = tmp_path / "results.db"
    store.write_bytes(lzma.decompress(packed.read_bytes()))
    taken = estimated = 0.0
    with bench.Store(store, create=False) as opened:
        for stored in opened.cells():
            batches = [b for b in stored.batches if b.get("device") == costs.GPU and "adapt_s" in b]
            cell = bench.Cell.from_dict(stored.cell)
            attacked = sum(bool(b.get("attack_s")) and not b.get("shared") for b in batches)
            taken += sum(b["adapt_s"] + b.get("attack_s", 0.0) for b in batches)
            estimated += costs.estimate(cell, len(batches), attacked).seconds
    assert estimated == pytest.approx(taken, rel=0.1)
