"""What a report says about a store: the numbers, the paper's beside them, and what is left out."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace

import pytest

from medbn.bench import Store, published, recipes
from medbn.bench.intervals import bootstrap, wilson
from medbn.bench.results import read
from medbn.report import FORMATS, build, headline
from medbn.report.document import Curves, Facts, Gallery, Heatmap, Measure, Scatter, Table, Text

FACTS = {"device": "a machine", "medbn": "0", "torch": "2", "python": "3", "threads": 1}
RATES = {"mean": 60, "median": 30, "image_median": 20, "mad": 40, "mad_scaled": 50}


def fill(path, recipe, batches: int = 2, shift: int = 0, tag: str = "a", again: bool = False) -> None:
    """A store as a run of the recipe would leave it, with made-up numbers that depend on the cell."""
    with Store(path) as store:
        keys = []
        for number, cell in enumerate(recipe.cells()):
            key = f"{tag}-{recipe.name}-{number:04}"
            keys.append(key)
            if again:
                continue
            store.claim(key, cell.to_dict(), FACTS)
            benign = cell.setting.batch_size - cell.setting.malicious
            for batch in range(batches):
                wrong = RATES[cell.estimator] * benign // 100 + batch + shift
                metrics = {"images": cell.setting.batch_size, "wrong": wrong, "adapt_s": 0.5, "device": "a machine"}
                if cell.attack is not None:
                    metrics |= {"benign": benign, "wrong_without": benign // 10, "wrong_clean": 12, "loss": 1.0}
                    metrics |= {"attack_s": 2.0, "shared": False}
                    if cell.attack.objective == "targeted":
                        metrics |= {
                            "hit": int(batch < (cell.estimator == "mean") + 1 - (cell.method == "tent")),
                            "already": 0,
                        }
                store.commit(key, batch, metrics, b"", [(b"\x89PNG clean", b"\x89PNG bad")] if batch == 0 else None)
            store.release(key)
        store.begin_run(json.loads(json.dumps(asdict(recipe))), f"medbn run {recipe.name}", FACTS, keys)


def parts(document, kind):
    return [part for section in document.sections for part in section.parts if isinstance(part, kind)]


@pytest.fixture
def cifar(tmp_path):
    def make(name: str, **narrow):
        recipe = recipes.get(name).narrow(**narrow)
        fill(tmp_path / "x.db", recipe)
        with Store(tmp_path / "x.db") as store:
            return build(store), recipe

    return make


def test_the_headline_holds_the_measured_numbers(cifar):
    document, _ = cifar("indiscriminate-instant", data=["cifar10-c"], methods=["tebn"], limit=2)
    table = parts(document, Table)[0]
    assert table.columns == ["method", "normalisation", "error without attack", "error under attack"]
    rows = {row[1]: row for row in table.rows}
    assert list(rows) == ["BatchNorm", "MedBN", "image_median"]
    expected = bootstrap([96, 97, 96, 97], [160] * 4, ["a", "a", "b", "b"])
    assert rows["BatchNorm"][3].value == pytest.approx(100 * expected.value)
    assert rows["BatchNorm"][3].low == pytest.approx(100 * expected.low)
    assert rows["BatchNorm"][2].value == pytest.approx(10)
    assert "from 10 to 60 % with BatchNorm" in document.lead


def test_targeted_attacks_are_counted_as_rates(cifar):
    document, _ = cifar("targeted-instant", data=["cifar10-c"], methods=["tebn", "tent"], limit=3)
    table = parts(document, Table)[0]
    rows = {(row[0], row[1]): row[3] for row in table.rows}
    expected = wilson(3, 6)  # one of two batches of three streams
    assert rows["TeBN", "MedBN"].value == pytest.approx(100 * expected.value)
    assert rows["TeBN", "MedBN"].high == pytest.approx(100 * expected.high)
    assert rows["TeBN", "BatchNorm"].value == 100
    assert rows["TENT", "MedBN"].value == 0
    assert rows["TENT", "MedBN"].high > 10  # none of six is not nothing


def test_differences_are_paired(cifar):
    document, _ = cifar("indiscriminate-instant", data=["cifar10-c"], methods=["tebn"], limit=2)
    table = next(table for table in parts(document, Table) if table.title == "Difference to BatchNorm")
    assert [row[:2] for row in table.rows] == [["TeBN", "MedBN"], ["TeBN", "image_median"]]
    assert table.rows[0][3].value == pytest.approx(-30)
    assert table.rows[0][3].low == pytest.approx(-30)


def test_the_papers_numbers_stand_beside_ours(cifar):
    document, recipe = cifar("indiscriminate-instant", data=["cifar10-c"], limit=2)
    table = next(table for table in parts(document, Table) if table.title.startswith("Table 2"))
    assert table.columns[2:5] == ["objective", "BatchNorm, ours", "BatchNorm, paper"]
    rows = {row[1]: row[1:] for row in table.rows if row[2] == "indiscriminate"}
    for method in recipe.methods:
        name = {"tent": "TENT", "sema": "sEMA", "mdia": "mDIA", "tebn": "TeBN", "sotta": "SoTTA"}.get(
            method, method.upper()
        )
        printed = published.get("indiscriminate-instant").lookup(dataset="cifar10-c", method=method, estimator="mean")
        assert rows[name][3] == printed
        assert isinstance(rows[name][2], Measure)


def test_disagreements_in_the_paper_are_shown_with_both_numbers(cifar):
    document, _ = cifar("cumulative", limit=1)
    table = next(table for table in parts(document, Table) if table.title.startswith("Table 3"))
    found = published.get("cumulative").disagreements()
    assert found
    for _, printed, recomputed in found:
        assert any(f"{printed:.2f}" in note and f"{recomputed:.2f}" in note for note in table.notes)


def test_per_corruption_tables(cifar):
    document, _ = cifar("targeted-instant-per-corruption", data=["cifar10-c"], methods=["tebn"], limit=3)
    table = next(table for table in parts(document, Table) if "per-corruption" in table.title)
    assert "corruption" in table.columns
    ours = [row for row in table.rows if row[table.columns.index("BatchNorm, ours")] is not None]
    assert len(ours) == 3
    (one,) = parts(document, Heatmap)  # of one method, whose defences are its rows
    assert one.rows == ["BatchNorm", "MedBN", "image_median"]
    assert len(one.columns) == 3
    assert one.values[0][0].value == 100


def test_heatmaps_of_several_methods_are_one_for_each_defence(cifar):
    document, _ = cifar("targeted-instant", data=["cifar10-c"], methods=["tebn", "tent"], limit=3)
    assert [heatmap.rows for heatmap in parts(document, Heatmap)] == [["TeBN", "TENT"]] * 3


@pytest.mark.parametrize(
    ("name", "axis"), [("malicious-indiscriminate", "malicious"), ("batch-size-targeted", "batch_size")]
)
def test_sweeps_become_curves_with_the_papers_beside_them(cifar, name, axis):
    document, recipe = cifar(name, data=["cifar10-c"], limit=1)
    (curves,) = parts(document, Curves)
    values = sorted({getattr(setting, axis) for setting in recipe.settings})
    assert [x for x, _ in curves.series["MedBN"]] == values
    assert curves.reference["MedBN"]
    assert "image_median" not in curves.reference
    assert not parts(document, Scatter)


def test_worst_case_takes_the_worst_of_the_gradients(cifar):
    document, _ = cifar("worst-case", methods=["tebn"], limit=1)
    tables = [table for table in parts(document, Table) if "worst of them" in table.columns]
    assert len(tables) == 2
    assert sum("straight-through" in column for column in tables[0].columns) == 1
    mean = next(row for row in tables[0].rows if row[1] == "BatchNorm")
    assert len({value.value for value in mean[3:]}) == 1  # one attack stands for all gradients
    (first, _) = parts(document, Scatter)
    assert len(first.points) == 5


def test_knowledge_levels_have_no_worst(cifar):
    document, _ = cifar("knowledge", limit=1)
    table = parts(document, Table)[0]
    assert "worst of them" not in table.columns
    assert any("semi-white-box" in column for column in table.columns)
    paper = next(table for table in parts(document, Table) if table.title.startswith("Table 7"))
    assert all(isinstance(row[paper.columns.index("MedBN, ours")], Measure) for row in paper.rows)


def test_what_was_run_says_how_to_repeat_it(cifar):
    document, _ = cifar("no-attack", data=["cifar10-c"], limit=2)
    (facts,) = parts(document, Facts)
    items = dict(facts.items)
    assert items["recipe"] == "no-attack"
    assert items["device"] == "a machine"
    assert [text.text for text in parts(document, Text) if text.code] == ["medbn run no-attack"]
    assert not parts(document, Gallery)
    table = next(table for table in parts(document, Table) if table.title.startswith("Table 19"))
    assert [row[1] for row in table.rows] == ["TeBN", "TENT", "ETA", "SAR", "SoTTA", "sEMA", "mDIA"]
    assert all(row[2].value == pytest.approx(60.25) for row in table.rows)
    assert "2 of the fifteen corruptions" in table.notes[0]


@pytest.mark.parametrize("name", [name for name in recipes.available() if recipes.get(name).published])
def test_every_recipe_has_its_numbers_beside_the_papers(cifar, name):
    document, recipe = cifar(name, data=["cifar10-c"], limit=1)
    table = next(
        table for table in parts(document, Table) if table.title.startswith("Table") and table.columns[0] == "dataset"
    )
    ours = [i for i, column in enumerate(table.columns) if column.endswith(", ours") and "paper" not in column]
    corruption = table.columns.index("corruption") if "corruption" in table.columns else None
    there = recipe.corruptions[0].replace("_", " ")
    for row in table.rows:
        if row[0] == "cifar10-c" and (corruption is None or row[corruption] == there):
            assert all(isinstance(row[i], Measure) for i in ours), row


def test_runs_with_other_options_or_newer_data_are_not_mixed(tmp_path):
    recipe = recipes.get("indiscriminate-instant").narrow(data=["cifar10-c"], methods=["tent"], limit=2)
    path = tmp_path / "x.db"

    def shown() -> float:
        with Store(path) as store:
            return next(row for row in parts(build(store), Table)[0].rows if row[1] == "BatchNorm")[3].value

    fill(path, recipe)
    before = shown()
    other = replace(recipe, options={"tent": {"lr": 0.5}})
    fill(path, other, shift=20, tag="b")
    assert shown() == pytest.approx(before + 100 * 20 / 160)
    fill(path, recipe, shift=0, tag="a", again=True)  # the first once more: its cells are there already
    assert shown() == pytest.approx(before)
    fill(path, replace(recipe, corruptions=recipe.corruptions[:1]), shift=40, tag="c")  # images were made anew
    with Store(path) as store:
        streams = {(r.cell.corruption, r.key) for r in read(store)[0].cells if r.cell.estimator == "mean"}
    assert len(streams) == 2
    assert any(key.startswith("c-") for _, key in streams)


def test_attacks_that_differ_in_steps_alone_have_columns_of_their_own(tmp_path):
    recipe = recipes.get("indiscriminate-instant").narrow(data=["cifar10-c"], methods=["tebn"], limit=1)
    both = replace(recipe, attacks=(*recipe.attacks, replace(recipe.attacks[0], steps=7)))
    fill(tmp_path / "x.db", both)
    with Store(tmp_path / "x.db") as store:
        table = parts(build(store), Table)[0]
    assert sum("7 steps" in column for column in table.columns) == 1
    assert sum("100 steps" in column for column in table.columns) == 1
    assert "worst of them" not in table.columns


def test_severities_and_sizes_have_tables_of_their_own(tmp_path):
    recipe = recipes.get("indiscriminate-instant").narrow(data=["cifar10-c"], methods=["tebn"], limit=1)
    (setting,) = recipe.settings
    more = (setting, replace(setting, severity=3), replace(setting, malicious=10))
    fill(tmp_path / "x.db", replace(recipe, settings=more))
    with Store(tmp_path / "x.db") as store:
        titles = [table.title for table in parts(build(store), Table) if "attack" in table.title]
    assert len(titles) == 3
    assert any("everity 3" in title for title in titles)
    assert any("10 of 200" in title for title in titles)


def test_unfinished_runs_say_so(tmp_path):
    recipe = recipes.get("indiscriminate-instant").narrow(data=["cifar10-c"], methods=["tebn"], limit=1)
    fill(tmp_path / "x.db", recipe, batches=2)
    with Store(tmp_path / "x.db") as store:
        store.connection.execute("DELETE FROM batches WHERE key LIKE '%0000' AND number = 1")
        table = parts(build(store), Table)[0]
    assert any("between 1 and 2 batches" in note for note in table.notes)


def without(store, estimator: str, keep: int, gradient: str | None = None) -> None:
    """Leave an estimator only the first batches of its streams, or of those under one kind of attack."""
    for stored in store.cells():
        if stored.cell["estimator"] == estimator and gradient in (None, stored.cell["attack"]["gradient"]):
            store.connection.execute("DELETE FROM batches WHERE key = ? AND number >= ?", (stored.key, keep))


def test_cells_of_fewer_batches_say_so_and_are_not_the_best(tmp_path):
    recipe = recipes.get("indiscriminate-instant").narrow(data=["cifar10-c"], methods=["tebn"], limit=2)
    fill(tmp_path / "x.db", recipe)
    with Store(tmp_path / "x.db") as store:
        without(store, "image_median", keep=1)
        document = build(store)
    table, difference = parts(document, Table)[:2]
    assert [row[3].count for row in table.rows] == [4, 4, 2]
    assert [row[3].count for row in difference.rows] == [4, 2]
    assert any(note.startswith("Cells are from 2 to 4 batches.") for note in table.notes)
    pages = {name: FORMATS.get(name).write(document) for name in ("html", "latex", "markdown")}
    assert "| TeBN | image_median | 10.0 (10.0–10.0; n = 2) | 20.0 (20.0–20.0; n = 2) |" in pages["markdown"]
    assert "| **30.3 (30.0–30.6)** |" in pages["markdown"]
    assert r"$20.0_{[20.0,\,20.0]}$ (n = 2)" in pages["latex"]
    assert '<span class="interval">20.0–20.0</span><span class="count">n = 2</span>' in pages["html"]


def test_cells_of_as_many_batches_do_not_say_how_many(cifar):
    document, _ = cifar("worst-case", methods=["tebn"], limit=2)
    assert not any("Cells are from" in note for table in parts(document, Table) for note in table.notes)
    for kind in ("html", "markdown", "latex"):
        assert "(n = " not in FORMATS.get(kind).write(document)
        assert "; n = " not in re.sub('title="[^"]*"', "", FORMATS.get(kind).write(document))
    assert all(scatter.caption == "" for scatter in parts(document, Scatter))


def test_how_many_batches_of_each_corruption_there_are(tmp_path):
    recipe = recipes.get("targeted-instant").narrow(data=["cifar10-c"], methods=["tebn"], limit=3)

    def note() -> str:
        with Store(tmp_path / "x.db") as store:
            return next(note for note in parts(build(store), Table)[0].notes if "intervals cover" in note)

    fill(tmp_path / "x.db", recipe, batches=1)
    assert note().startswith("One batch of each corruption: ")
    fill(tmp_path / "x.db", replace(recipe, seeds=(1, 2), estimators=("mean",)), batches=1, tag="b")
    assert note().startswith("1 to 3 batches of each corruption: ")
    with Store(tmp_path / "x.db") as store:
        store.connection.execute("DELETE FROM batches WHERE key LIKE 'b%' OR key LIKE '%0008'")
    assert note().startswith("One batch of each of 2 to 3 corruptions: ")


def test_one_attack_has_one_interval(cifar):
    document, _ = cifar("indiscriminate-instant", data=["cifar10-c"], methods=["tebn"], limit=2)
    rows = parts(document, Table)[0].rows
    (scatter,) = parts(document, Scatter)
    assert [(point.x, point.y) for point in scatter.points] == [(row[2], row[3]) for row in rows]


def test_the_worst_of_attacks_is_drawn_within_streams_too(tmp_path):
    recipe = recipes.get("worst-case").narrow(methods=["tebn"], limit=2)
    fill(tmp_path / "x.db", recipe)
    with Store(tmp_path / "x.db") as store:
        for stored in store.cells():
            if stored.cell["corruption"] == recipe.corruptions[0]:
                store.connection.execute(
                    "UPDATE batches SET metrics = json_set(metrics, '$.wrong', 5 + number) WHERE key = ?", (stored.key,)
                )
        (first, _) = parts(build(store), Scatter)
    assert all(point.y.high - point.y.low < 1 for point in first.points)


def test_a_picture_says_which_batches_it_is_over_where_these_are_not_all(tmp_path):
    fill(tmp_path / "x.db", recipes.get("worst-case").narrow(methods=["tebn"], limit=1))
    with Store(tmp_path / "x.db") as store:
        without(store, "mad", keep=1, gradient="smooth")
        document = build(store)
    for scatter in parts(document, Scatter):
        assert scatter.caption.endswith("and so with other errors without attack, for TeBN + MAD.")
        assert [point.x.count for point in scatter.points if point.series == "MAD"] == [1]
    (row,) = [row for row in parts(document, Table)[0].rows if row[1] == "MAD"]
    assert (row[2].count, row[-1].count) == (2, 1)


def test_the_lead_of_an_unfinished_run_compares_the_same_batches(tmp_path):
    recipe = recipes.get("indiscriminate-instant").narrow(data=["cifar10-c"], methods=["tebn"], limit=1)
    fill(tmp_path / "x.db", recipe)
    with Store(tmp_path / "x.db") as store:
        for stored in store.cells():  # the second batch is much harder
            store.connection.execute(
                "UPDATE batches SET metrics = json_set(metrics, '$.wrong', 160) WHERE key = ? AND number = 1",
                (stored.key,),
            )
        assert "from 10 to 80 % with BatchNorm" in build(store).lead
        without(store, "image_median", keep=1)
        lead = build(store).lead
        assert lead.startswith("The run is not complete. ")
        assert "from 10 to 60 % with BatchNorm" in lead
        assert "from 10 to 20 % with image_median" in lead
        assert lead.endswith("These are of the one batch that all of them have.")
        store.connection.execute("DELETE FROM batches WHERE key = ?", (store.cells()[0].key,))
        assert build(store).lead.startswith("The run is not complete. ")
        assert "BatchNorm" not in build(store).lead


def test_nothing_is_compared_in_the_lead_that_shares_no_batch(tmp_path):
    recipe = recipes.get("indiscriminate-instant").narrow(data=["cifar10-c"], methods=["tebn"], limit=2)
    fill(tmp_path / "x.db", recipe)
    with Store(tmp_path / "x.db") as store:
        for stored in store.cells():
            if (stored.cell["corruption"] == recipe.corruptions[0]) == (stored.cell["estimator"] == "median"):
                store.connection.execute("DELETE FROM batches WHERE key = ?", (stored.key,))
        assert build(store).lead == f"The run is not complete. {recipe.about}"


def test_a_run_that_ended_is_complete(tmp_path):
    recipe = recipes.get("indiscriminate-instant").narrow(data=["cifar10-c"], methods=["tebn"], limit=1)
    fill(tmp_path / "x.db", replace(recipe, batches=9))  # of streams that are shorter
    with Store(tmp_path / "x.db") as store:
        assert build(store).lead.startswith("The run is not complete. ")
        store.end_run(store.runs()[-1].id)
        assert build(store).lead.startswith("The error on images")


def test_several_recipes_and_a_choice_of_them(tmp_path):
    path = tmp_path / "x.db"
    for name in ("epsilon", "knowledge"):
        fill(path, recipes.get(name).narrow(limit=1))
    with Store(path) as store:
        both = build(store)
        assert any(section.title.startswith("epsilon: ") for section in both.sections)
        assert any(section.title.startswith("knowledge: ") for section in both.sections)
        assert not any("epsilon" in section.title for section in build(store, ["knowledge"]).sections)
        with pytest.raises(ValueError, match="Did you mean 'epsilon'"):
            build(store, ["epsilom"])
        for kind in FORMATS:
            assert len(FORMATS.get(kind).write(both)) > 1000, kind
        contents = FORMATS.get("html").write(both).partition("<nav")[2].partition("</nav>")[0]
        assert contents.count("<a ") == 2
        assert '<a href="#epsilon-results">epsilon</a>' in contents
        assert "What was run</a>" in FORMATS.get("html").write(build(store, ["epsilon"]))


def test_an_empty_store_has_no_report(tmp_path):
    with Store(tmp_path / "x.db") as store, pytest.raises(ValueError, match=r"no results in .* yet"):
        build(store)


def test_registered_estimators_are_called_by_their_names(tmp_path, monkeypatch):
    import medbn

    monkeypatch.setattr(medbn.estimators._registry, "_values", dict(medbn.estimators._registry._values))
    medbn.estimators.register("mine")(lambda x, valid: (x.mean((0, 2, 3)), x.var((0, 2, 3))))
    monkeypatch.setitem(RATES, "mine", 70)
    recipe = recipes.get("epsilon").narrow(limit=1)
    fill(tmp_path / "x.db", replace(recipe, estimators=("mean", "mine")))
    with Store(tmp_path / "x.db") as store:
        document = build(store)
        assert list(document.series) == ["BatchNorm", "mine"]
        ((title, columns, rows),) = headline(store, "epsilon")
    assert "argeted attack" in title
    assert columns[1] == "normalisation"
    assert {row[1] for row in rows} == {"BatchNorm", "mine"}
