"""Results: selections and numbers over made-up cells. Whole reports are tested in tests/report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from medbn import bench
from medbn.bench import Result, Results


def test_the_worst_attack_is_over_batches_that_had_all_attacks(tiny):
    cell = replace(next(iter(tiny.cells())), estimator="median")
    exact, smooth = (replace(cell, attack=replace(cell.attack, gradient=g)) for g in ("exact", "smooth"))
    hits = {exact: [1, 0, 0], smooth: [0, 1, 0, 1, 1]}
    cells = [Result("", one, [{"hit": hit} for hit in each], {}) for one, each in hits.items()]
    assert Results({}, [], cells).worst().value == pytest.approx(2 / 3)
    assert Results({}, [], cells[1:]).worst().value == pytest.approx(3 / 5)
    assert Results({}, [], []).worst() is None
    assert Results({}, [], cells[1:]).worst([exact.attack, smooth.attack]) is None


def test_a_mean_has_one_gradient_so_one_attack_is_its_worst(tiny):
    cell = replace(next(iter(tiny.cells())), estimator="mean")
    one, other = (replace(cell.attack, gradient=gradient) for gradient in ("straight_through", "smooth"))
    results = Results({}, [], [Result("", replace(cell, attack=one), [{"hit": 1}, {"hit": 0}], {})])
    assert results.worst([one, other]).value == 0.5


def test_an_error_without_attack_counts_each_batch_once(tiny):
    cell = next(iter(tiny.cells()))
    other = replace(cell, attack=replace(cell.attack, steps=9))
    batches = [
        {"images": 10, "wrong": 6, "wrong_without": 2, "benign": 8},
        {"images": 10, "wrong": 8, "wrong_without": 4, "benign": 8},
    ]
    results = Results({}, [], [Result("a", cell, batches, {}), Result("b", other, batches, {})])
    assert results.error("wrong_without").value == pytest.approx(6 / 16)
    assert results.error().value == pytest.approx(14 / 16)
    assert results.error("wrong_without") == results.select(lambda one: one is cell).error("wrong_without")


def test_a_recipe_that_is_not_in_a_store_is_named(tmp_path):
    with bench.Store(tmp_path / "x.db") as store, pytest.raises(ValueError, match="demo"):
        bench.results.read(store, ["demo"])
