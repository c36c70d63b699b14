"""Poisoned batches are crafted once, in memory and in a store, and equal what an attack returns."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from medbn import analysis
from medbn.analysis.experiment import one_per_stage, visit_layers
from medbn.bench import Store, StoreError

from .conftest import state_values


def counted(settings, store):
    """An experiment, and the list of the attacks that it ran."""
    crafted = []
    experiment = analysis.Experiment(
        settings, store=store, on_step=lambda what, done, of: crafted.append(what) if done == of > 1 else None
    )  # a batch that is kept is a single step
    return experiment, crafted


def test_a_poisoned_batch_is_what_the_attack_returns(experiment):
    cell = experiment.cell("median", epsilon=8 / 255)
    images, labels = experiment.batch(cell)
    expected = cell.attack.build(0)(experiment.adapter(cell), images, labels, experiment.malicious)
    assert torch.equal(experiment.poisoned(cell), expected)
    assert torch.equal(expected[experiment.benign], images[experiment.benign])


def test_a_batch_is_crafted_once_in_a_store(settings, tmp_path):
    with Store(tmp_path / "s.db") as store:
        first, crafted = counted(settings, store)
        cell = first.cell("mean")
        batch = first.poisoned(cell)
        first.poisoned(cell)
        assert len(crafted) == 1
    with Store(tmp_path / "s.db") as store:
        second, crafted = counted(settings, store)
        assert torch.equal(second.poisoned(cell), batch)
        assert not crafted
        second.poisoned(second.cell("mean", epsilon=8 / 255))
        assert len(crafted) == 1


@pytest.mark.slow
def test_numbers_are_measured_once_in_a_store_and_leave_cells_alone(settings, tmp_path):
    with Store(tmp_path / "s.db") as store:
        store.claim("k", {"a": 1}, {})
        store.commit("k", 0, {"wrong": 3}, b"state")
        experiment, _ = counted(settings, store)
        experiment.command = "medbn figure shift"
        numbers = analysis.measure("shift", experiment)
        assert analysis.measure("shift", experiment) == numbers
        assert analysis.stored_numbers(store) == [numbers]
        assert numbers.command == "medbn figure shift"
        other = analysis.Experiment(replace(settings, seed=1), store=store)
        assert analysis.measure("shift", other) != numbers
        assert len(analysis.stored_numbers(store)) == 2
        assert [stored.batches for stored in store.cells()] == [[{"wrong": 3}]]
        store.seal(tmp_path / "sealed.db")
    with Store(tmp_path / "sealed.db") as sealed:
        assert analysis.stored_numbers(sealed)[0] == numbers
        assert sealed.rows("poisoned") == []


@pytest.mark.slow
@pytest.mark.parametrize("table", ["figures", "poisoned"])
def test_a_damaged_row_is_an_error(settings, tmp_path, table):
    path = tmp_path / "s.db"
    with Store(path) as store:
        experiment = analysis.Experiment(settings, store=store)
        analysis.measure("shift", experiment)
        column = {"figures": "numbers", "poisoned": "images"}[table]
        store.connection.execute(f"UPDATE {table} SET {column} = '{{}}'")
    with Store(path) as store:
        fresh = analysis.Experiment(settings, store=store)
        with pytest.raises(StoreError, match="damaged"):
            analysis.measure("shift", fresh) if table == "figures" else fresh.poisoned(fresh.cell("mean"))


def test_a_store_with_another_table_of_that_name_is_refused(tmp_path):
    with Store(tmp_path / "s.db") as store:
        store.connection.execute("CREATE TABLE figures (key TEXT)")
    with pytest.raises(StoreError, match="figures"):
        Store(tmp_path / "s.db")


def test_a_batch_beyond_the_stream_is_an_error(experiment):
    with pytest.raises(ValueError, match="no batch 100"):
        experiment.batch(experiment.cell("mean"), 99)


@pytest.mark.parametrize("name", ["entropy-gradient", "filters", "landscape", "shift"])
def test_too_many_batches_are_an_error_before_any_is_attacked(settings, name):
    experiment, crafted = counted(replace(settings, batches=100), None)
    with pytest.raises(ValueError, match="no batch 100"):
        analysis.measure(name, experiment)
    assert not crafted


def test_the_adapter_that_is_attacked_is_kept_for_all_corruptions_and_left_as_it_is(settings):
    experiment = analysis.Experiment(settings)
    cell, other = experiment.cell("median"), experiment.cell("median", corruption="fog", objective="indiscriminate")
    adapter = experiment.unadapted(cell)
    before = state_values(adapter)
    experiment.poisoned(cell)
    assert experiment.unadapted(other) is adapter
    assert state_values(adapter) == before
    assert experiment.adapter(cell) is not adapter
    names = {layer.estimator.name for layer in experiment.unadapted(experiment.cell("mean")).layers.values()}
    assert names == {"mean"}


def test_visiting_layers_changes_nothing_and_leaves_no_hooks(experiment):
    cell = experiment.cell("median")
    adapter, (images, _) = experiment.adapter(cell), experiment.batch(cell)
    before = adapter.surrogate()(images)
    shapes = visit_layers(adapter, images, lambda name, layer, x: (layer.num_features, x.shape[1]))
    assert len(shapes) == 9
    assert all(features == channels for features, channels in shapes.values())
    assert torch.equal(adapter.surrogate()(images), before)
    assert not any(layer._forward_pre_hooks for layer in adapter.layers.values())


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["bn1", *(f"layer{k}.{i}.bn{j}" for k in (1, 2) for i in (0, 1) for j in (1, 2))], 3),
        ([f"{i}" for i in range(3)], 3),
        ([f"{i}" for i in range(20)], 4),
    ],
)
def test_few_layers_stand_for_a_model(names, expected):
    shown = one_per_stage(names)
    assert len(shown) == expected
    assert shown == [name for name in names if name in shown]
    assert shown[0] == names[0]
    assert shown[-1] == names[-1]
