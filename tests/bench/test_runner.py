"""Runs: what they store, what they leave alone, and that continued streams have the same bits."""

from __future__ import annotations

from dataclasses import replace

import pytest

import medbn
from medbn import bench, data, models

from ..tiers import slow
from .stored import stored_metrics


@pytest.mark.slow
def test_finished_cells_are_left_alone_and_streams_are_continued(tmp_path, tiny):
    store, events = tmp_path / "x.db", []
    bench.run(replace(tiny, batches=1), store)
    first = stored_metrics(store)
    bench.run(tiny, store, on_event=events.append)
    assert sum(event.kind == "batch" for event in events) == 4 * 2
    second = stored_metrics(store)
    assert all(second[key][:1] == batches for key, batches in first.items())
    events.clear()
    bench.run(tiny, store, on_event=events.append)
    assert {event.kind for event in events} == {"finished"}
    bench.run(tiny, tmp_path / "whole.db")
    assert stored_metrics(tmp_path / "whole.db") == second


def test_an_interrupted_run_keeps_what_is_finished(tmp_path, tiny):
    def interrupt(event: bench.Event) -> None:
        if event.kind == "batch" and event.batch == 2:
            raise KeyboardInterrupt

    store = tmp_path / "x.db"
    with pytest.raises(KeyboardInterrupt):
        bench.run(tiny, store, on_event=interrupt)
    assert [len(batches) for batches in stored_metrics(store).values()] == [2]
    with bench.Store(store) as opened:
        assert opened.runs()[0].ended is None
        assert opened.connection.execute("SELECT count(*) FROM cells WHERE host IS NOT NULL").fetchone() == (0,)


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_stops_when_its_time_is_over_and_can_be_continued(tmp_path, tiny, jobs):
    place = bench.Place(threads=1)
    executor = bench.Processes(place, jobs) if jobs > 1 else None
    assert not bench.run(tiny, tmp_path / "x.db", place=place, executor=executor, seconds=0)
    assert 0 < sum(map(len, stored_metrics(tmp_path / "x.db").values())) < 12
    assert bench.run(tiny, tmp_path / "x.db", place=place, executor=executor, seconds=600)
    bench.run(tiny, tmp_path / "whole.db", place=place)
    assert stored_metrics(tmp_path / "x.db") == stored_metrics(tmp_path / "whole.db")


@pytest.mark.slow
def test_what_several_recipes_share_runs_once(tmp_path, tiny):
    short = replace(tiny, name="short", batches=1)
    other = replace(tiny, name="other", batches=1, attacks=())
    events = []
    assert bench.run([short, tiny, other], tmp_path / "x.db", on_event=events.append)
    with bench.Store(tmp_path / "x.db") as store:
        assert [run.recipe["name"] for run in store.runs()] == ["short", tiny.name, "other"]
        assert all(run.ended for run in store.runs())
        assert sorted(len(cell.batches) for cell in store.cells()) == [1, 1, 1, 1, 3, 3, 3, 3]
    assert sum(event.kind == "started" for event in events) == 8


def test_what_an_attacked_batch_stores(tmp_path, tiny):
    targeted = replace(tiny, attacks=(bench.Attack("targeted", steps=1),), batches=1, methods=("tebn",))
    bench.run(targeted, tmp_path / "x.db")
    with bench.Store(tmp_path / "x.db") as store:
        stored = store.cells()[0]
        (batch,) = stored.batches
        assert len(store.examples(stored.key)) == 6
    assert (batch["images"], batch["benign"]) == (30, 24)
    assert batch["hit"] in (0, 1)
    assert batch["wrong_without"] <= batch["wrong_clean"]
    assert batch["attack_s"] > 0
    assert batch["adapt_s"] > 0
    assert set(stored.facts) == set(bench.machine_facts(bench.Place()))


def test_numbers_are_those_of_the_library(tmp_path, tiny):
    bench.run(replace(tiny, methods=("tent",), estimators=("median",)), tmp_path / "x.db")
    (batches,) = stored_metrics(tmp_path / "x.db").values()
    adapter = medbn.adapt(models.get("resnet-small", weights="shipped"), "tent", "median", predict="after")
    stream = data.load("digits", corruption="contrast", frost="synthetic").batches(30, limit=3)
    attack = medbn.attacks.DIA(medbn.attacks.Indiscriminate(), steps=2, step_size=0.1)
    for batch, outcome in zip(batches, medbn.attacks.instant(adapter, stream, attack, slice(24, 30)), strict=True):
        assert batch["wrong"] == round(outcome.harm() * 24)
        assert batch["wrong_without"] == round(outcome.harm_without() * 24)


@pytest.mark.parametrize("scenario", ["cumulative", *slow("instant")])
def test_the_warm_up_is_served_without_attack(tmp_path, tiny, scenario):
    changes = {"methods": ("sema",), "estimators": ("median",), "batches": 3, "scenario": scenario}
    whole = replace(tiny, **changes)
    warm = replace(whole, name="warm", warm_up=2)
    for recipe in (whole, warm):
        bench.run(recipe, tmp_path / f"{recipe.name}.db")
    (attacked,), (warmed,) = (stored_metrics(tmp_path / f"{name}.db").values() for name in ("tiny", "warm"))
    assert [set(batch) for batch in warmed[:2]] == [{"images", "wrong_clean", "device"}] * 2
    assert [batch["wrong_clean"] for batch in warmed] == [batch["wrong_clean"] for batch in attacked]
    assert (warmed[2] == attacked[2]) == (scenario == "instant")  # where no batch is affected by another's poison
    with bench.Store(tmp_path / "warm.db") as store:
        (results,) = bench.results.read(store)
    assert len(results.batches) == 1
    assert results.worst().value == results.measure().value == warmed[2]["wrong"] / warmed[2]["benign"]


@pytest.mark.slow
def test_fused_results_are_stored_apart(tmp_path, tiny):
    """On a CPU they are the same numbers. A report shows those of the last run."""
    own = replace(tiny, methods=("tent", "source"), estimators=("image_median",), batches=1)
    for recipe in (own, replace(own, fuse=True)):
        bench.run(recipe, tmp_path / "x.db")
        with bench.Store(tmp_path / "x.db") as store:
            (results,) = bench.results.read(store)
        assert [result.cell.fuse for result in results.cells] == [recipe.fuse] * 2
        assert results.recipe["fuse"] == recipe.fuse
    with bench.Store(tmp_path / "x.db") as store:
        cells = {cell.cell["fuse"]: cell for cell in store.cells() if cell.cell["method"] == "tent"}
    for batch, other in zip(*(cell.batches for cell in cells.values()), strict=True):
        assert batch["wrong"] == other["wrong"]
    transformer = replace(own.settings[0], model="vit-tiny")
    with pytest.raises(ValueError, match=r"fuse=.*no BatchNorm"):
        bench.run(replace(own, settings=(transformer,), estimators=("mean",), fuse=True), tmp_path / "y.db")


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("past", {"momentum": 2.0}, "options of past: momentum"),
        ("tent", {"lr": -1.0}, "options of tent.*lr is"),
        ("eata", {"steps": 0}, "options of eata: steps"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(method, options, message, tmp_path, tiny):
    recipe = replace(tiny, methods=("tebn", method), options={method: options})
    with pytest.raises(ValueError, match=message):
        bench.run([tiny, recipe], tmp_path / "x.db")
    assert not (tmp_path / "x.db").exists()


def test_a_recipe_without_cells_is_an_error(tmp_path, tiny):
    nothing = replace(tiny, settings=(replace(tiny.settings[0], malicious=0),))
    with pytest.raises(ValueError, match="nothing to run"):
        bench.run(nothing, tmp_path / "x.db")


def test_a_sealed_store_keeps_results_and_cannot_be_continued(tmp_path, tiny):
    bench.run(replace(tiny, batches=1), tmp_path / "x.db")
    with bench.Store(tmp_path / "x.db") as store:
        store.seal(tmp_path / "sealed.db")
        with pytest.raises(bench.StoreError, match="exists"):
            store.seal(tmp_path / "sealed.db")
    assert (tmp_path / "sealed.db").stat().st_size < (tmp_path / "x.db").stat().st_size
    assert stored_metrics(tmp_path / "sealed.db") == stored_metrics(tmp_path / "x.db")
    assert bench.run(replace(tiny, batches=1), tmp_path / "sealed.db")
    with pytest.raises(ValueError, match="sealed"):
        bench.run(tiny, tmp_path / "sealed.db")
