"""Merging: the result is that of one run, whatever overlaps; contradictions are named and change nothing."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from medbn import bench, report
from medbn.bench.cell_rows import add_rows, read_rows
from medbn.bench.store import Store

from .stored import stored_metrics

FACTS = {"device": "x"}
CELL = {
    "setting": {"data": "digits"},
    "corruption": "fog",
    "method": "tent",
    "estimator": "mean",
    "attack": None,
    "seed": 0,
}


def make(path: Path, key: str, values: list[int], facts: dict = FACTS, state: bool = True) -> Path:
    """Write a store with one cell whose batches have these numbers."""
    with Store(path) as store:
        store.claim(key, CELL, facts)
        for number, value in enumerate(values):
            metrics = {"wrong": value, "loss": float("nan"), "attack_s": len(str(path)) + 0.5, "device": str(path)}
            store.commit(key, number, metrics, b"state %d" % number, [(b"c", b"p")] if number == 0 else None)
        store.release(key)
        run = store.begin_run({"name": "r"}, "medbn run r", facts, [key])
        store.end_run(run)
    if not state:
        with Store(path) as store:
            store.seal(path.with_suffix(".sealed"))
        path.with_suffix(".sealed").replace(path)
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def wrongs(path: Path) -> dict[str, list[int]]:
    return {key: [batch["wrong"] for batch in batches] for key, batches in stored_metrics(path).items()}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_longest_stream_counts_in_any_order(tmp_path, order):
    stores = [
        make(tmp_path / "a.db", "k", [1, 2]),
        make(tmp_path / "b.db", "k", [1, 2, 3]),
        make(tmp_path / "c.db", "other", [7]),
    ]
    before = [digest(path) for path in stores]
    merged = bench.merge([stores[place] for place in order], tmp_path / "all.db")
    assert (merged.cells, merged.new, merged.batches) == (2, 2, 4)
    assert wrongs(tmp_path / "all.db") == {"k": [1, 2, 3], "other": [7]}
    assert [digest(path) for path in stores] == before
    with Store(tmp_path / "all.db") as store:
        assert store.progress("k") == (3, b"state 2")
        assert store.examples("k") == [(b"c", b"p")]
        assert len(store.runs()) == 3
        assert all(run.ended for run in store.runs())


def test_merging_again_changes_nothing(tmp_path):
    stores = [make(tmp_path / f"{name}.db", "k", values) for name, values in (("a", [1]), ("b", [1, 2]))]
    bench.merge(stores, tmp_path / "all.db")
    with Store(tmp_path / "all.db") as store:
        before = "\n".join(store.connection.iterdump())
    merged = bench.merge([*stores, tmp_path / "all.db"], tmp_path / "all.db")
    assert (merged.cells, merged.new, merged.longer, merged.batches) == (1, 0, 0, 0)
    with Store(tmp_path / "all.db") as store:
        assert "\n".join(store.connection.iterdump()) == before


def test_a_longer_stream_extends_one_that_is_there(tmp_path):
    make(tmp_path / "all.db", "k", [1])
    merged = bench.merge([make(tmp_path / "b.db", "k", [1, 2])], tmp_path / "all.db")
    assert (merged.new, merged.longer, merged.batches) == (0, 1, 1)


def test_contradictions_are_named_and_change_nothing(tmp_path):
    target = make(tmp_path / "all.db", "k", [1, 2])
    before = digest(target)
    good, bad = make(tmp_path / "good.db", "new", [1]), make(tmp_path / "bad.db", "k", [1, 5, 6])
    with pytest.raises(bench.ContradictionError) as error:
        bench.merge([good, bad], target)
    for part in ("digits fog tent + mean", "batch 1", "wrong is 2", "5", "bad.db", "1 stream "):
        assert part in str(error.value)
    assert digest(target) == before
    with pytest.raises(bench.ContradictionError):
        bench.merge([target, bad], tmp_path / "fresh.db")
    assert not (tmp_path / "fresh.db").exists()


def test_a_missing_store_and_a_foreign_file_create_nothing(tmp_path):
    (tmp_path / "foreign.db").write_text("x" * 200)
    for path in (tmp_path / "missing.db", tmp_path / "foreign.db"):
        with pytest.raises(bench.StoreError):
            bench.merge([path], tmp_path / "all.db")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["foreign.db"]


@pytest.mark.parametrize("sealed_first", [True, False])
def test_a_sealed_store_gets_the_state_of_one_that_is_not(tmp_path, sealed_first):
    sealed = make(tmp_path / "sealed.db", "k", [1, 2], state=False)
    whole = make(tmp_path / "whole.db", "k", [1, 2])
    bench.merge([sealed, whole] if sealed_first else [whole, sealed], tmp_path / "all.db")
    with Store(tmp_path / "all.db") as store:
        assert store.progress("k") == (2, b"state 1")


def test_a_longer_sealed_stream_cannot_be_continued(tmp_path):
    """The state of the shorter stream is not that after the last batch."""
    stores = [make(tmp_path / "a.db", "k", [1]), make(tmp_path / "b.db", "k", [1, 2], state=False)]
    bench.merge(stores, tmp_path / "all.db")
    with Store(tmp_path / "all.db") as store:
        assert store.progress("k") == (2, None)


def test_a_store_that_a_run_writes_to_is_left_alone(tmp_path):
    target, source = make(tmp_path / "all.db", "k", [1]), make(tmp_path / "b.db", "k", [1, 2])
    with Store(target) as other:
        other.owner = ("another", 1, "7")
        other.claim("k", CELL, FACTS)
        with pytest.raises(ValueError, match="run is writing"):
            bench.merge([source], target)
    assert wrongs(target) == {"k": [1]}


def test_missing_shards_are_said(tmp_path):
    stores = [make(tmp_path / f"{n}.db", f"k{n}", [1], {"shard": f"{n}/3"}) for n in (1, 3)]
    assert bench.merge(stores, tmp_path / "all.db").missing == ("2/3 of r",)


def test_rows_after_a_gap_are_refused(tmp_path):
    source = make(tmp_path / "a.db", "k", [1, 2, 3])
    with Store(source) as opened, Store(tmp_path / "b.db") as target:
        rows = read_rows(opened, "k", first=2)
        assert (rows.end, len(rows.batches)) == (3, 1)
        with pytest.raises(ValueError, match="missing"), target.transaction():
            add_rows(target, rows)
        with target.transaction():
            assert add_rows(target, read_rows(opened, "k")) == 3
            assert add_rows(target, rows) == 0
        assert target.progress("k") == (3, b"state 2")


def test_tables_of_figures_are_merged(tmp_path):
    paths = [make(tmp_path / f"{name}.db", "k", [1]) for name in "ab"]
    for path, numbers in zip(paths, ("[1]", "[2]"), strict=True):
        with Store(path) as store, store.transaction():
            store.insert("figures", "f", "name", numbers, "{}", "", json.dumps(FACTS), 1.0)
    bench.merge(paths[:1], tmp_path / "all.db")
    with Store(tmp_path / "all.db") as store:
        assert store.rows("figures")[0][2] == "[1]"
    with pytest.raises(bench.ContradictionError, match="figures"):
        bench.merge(paths, tmp_path / "all.db")


@pytest.mark.slow
def test_merged_shards_are_one_run(tmp_path, tiny):
    place = bench.Place(threads=1)
    bench.run(tiny, tmp_path / "whole.db", place=place)
    parts = [tmp_path / f"{number}.db" for number in (1, 2, 3)]
    for number, path in enumerate(parts, start=1):
        assert bench.run(tiny, path, place=place, shard=bench.Shard(number, 3))  # the third has nothing to do
    bench.run(replace(tiny, batches=1), tmp_path / "overlap.db", place=place)
    target = tmp_path / "all.db"
    assert bench.merge(parts[1:], target).missing == ("1/3 of tiny",)
    assert bench.merge([*parts, tmp_path / "overlap.db"], target).missing == ()
    assert stored_metrics(target) == stored_metrics(tmp_path / "whole.db")
    events: list[bench.Event] = []
    assert bench.run(tiny, target, place=place, on_event=events.append)
    assert {event.kind for event in events} == {"finished"}
    with Store(target) as merged:
        assert "tiny" in report.FORMATS.get("markdown").write(report.build(merged))
