"""The main tables: their numbers, their columns, and the notes where batches are missing."""

import re
from dataclasses import replace

import pytest

from medbn.bench import Store, intervals, recipes
from medbn.report import FORMATS, build, headline
from medbn.report.document import Scatter, Table
from tests.report.stores import fill, keep_batches, parts

ONE = {"data": ["cifar10-c"], "methods": ["tebn"]}


def test_the_main_table_has_the_measured_numbers(report):
    document, _ = report("indiscriminate-instant", limit=3, **ONE)
    table = parts(document, Table)[0]
    assert table.columns == ["method", "normalisation", "error without attack", "error under attack"]
    rows = {row[1]: row for row in table.rows}
    assert list(rows) == ["BatchNorm", "MedBN", "image_median"]
    expected = intervals.bootstrap([96, 97] * 3, [160] * 6, ["a", "a", "b", "b", "c", "c"])
    assert rows["BatchNorm"][3].value == pytest.approx(100 * expected.value)
    assert rows["BatchNorm"][3].low == pytest.approx(100 * expected.low)
    assert rows["BatchNorm"][2].value == pytest.approx(10)


def test_the_success_of_targeted_attacks_is_a_rate(report):
    document, _ = report("targeted-instant", data=["cifar10-c"], methods=["tebn", "tent"], limit=3)
    rows = {(row[0], row[1]): row[3] for row in parts(document, Table)[0].rows}
    expected = intervals.wilson(3, 6)  # one of two batches of three streams
    assert rows["TeBN", "MedBN"].value == pytest.approx(100 * expected.value)
    assert rows["TeBN", "MedBN"].high == pytest.approx(100 * expected.high)
    assert rows["TeBN", "BatchNorm"].value == 100
    assert rows["TENT", "MedBN"].value == 0
    assert rows["TENT", "MedBN"].high > 10  # none of six does not prove a rate of zero


def test_differences_are_paired(report):
    document, _ = report("indiscriminate-instant", limit=3, **ONE)
    table = next(table for table in parts(document, Table) if table.title == "Difference to BatchNorm")
    assert [row[:2] for row in table.rows] == [["TeBN", "MedBN"], ["TeBN", "image_median"]]
    assert table.rows[0][3].value == pytest.approx(-30)
    assert table.rows[0][3].low is None  # the same in all batches, though their errors differ
    assert parts(document, Table)[0].rows[0][3].low is not None


def test_fewer_than_five_batches_show_their_number_in_place_of_an_interval(report):
    document, _ = report("indiscriminate-instant", limit=2, **ONE)
    table, difference = parts(document, Table)[:2]
    assert all((value.low, value.count) == (None, 4) for row in (*table.rows, *difference.rows) for value in row[2:])
    assert not table.best
    assert "interval" not in table.caption
    assert any("five batches" in note for note in table.notes)
    assert "| TeBN | MedBN | 10.0 (n = 4) | 30.3 (n = 4) |" in FORMATS.get("markdown").write(document)


def test_the_worst_gradient_has_a_column(report):
    document, _ = report("worst-case", data=["cifar10-c"], methods=["tebn"], limit=1)
    tables = [table for table in parts(document, Table) if "worst of them" in table.columns]
    assert len(tables) == 2
    assert sum("straight-through" in column for column in tables[0].columns) == 1
    mean = next(row for row in tables[0].rows if row[1] == "BatchNorm")
    assert len({value.value for value in mean[3:]}) == 1  # the mean has one gradient


def test_attacks_of_different_attackers_have_no_worst(report):
    document, _ = report("knowledge", limit=1)
    table = parts(document, Table)[0]
    assert "worst of them" not in table.columns
    assert any("semi-white-box" in column for column in table.columns)


def test_attacks_that_differ_in_steps_alone_have_columns_of_their_own(tmp_path):
    recipe = recipes.get("indiscriminate-instant").narrow(limit=1, **ONE)
    fill(tmp_path / "x.db", replace(recipe, attacks=(*recipe.attacks, replace(recipe.attacks[0], steps=7))))
    with Store(tmp_path / "x.db") as store:
        table = parts(build(store), Table)[0]
    assert sum("7 steps" in column for column in table.columns) == 1
    assert sum("100 steps" in column for column in table.columns) == 1
    assert "worst of them" not in table.columns


def test_severities_and_sizes_have_tables_of_their_own(tmp_path):
    recipe = recipes.get("indiscriminate-instant").narrow(limit=1, **ONE)
    (setting,) = recipe.settings
    more = (setting, replace(setting, severity=3), replace(setting, malicious=10))
    fill(tmp_path / "x.db", replace(recipe, settings=more))
    with Store(tmp_path / "x.db") as store:
        titles = [table.title for table in parts(build(store), Table) if "attack" in table.title]
    assert len(titles) == 3
    assert any("everity 3" in title for title in titles)
    assert any("10 of 200" in title for title in titles)


def test_streams_of_different_lengths_are_mentioned(tmp_path):
    fill(tmp_path / "x.db", recipes.get("indiscriminate-instant").narrow(limit=1, **ONE))
    with Store(tmp_path / "x.db") as store:
        store.connection.execute("DELETE FROM batches WHERE key LIKE '%0000' AND number = 1")
        table = parts(build(store), Table)[0]
    assert any("between 1 and 2 batches" in note for note in table.notes)


def test_measures_from_fewer_batches_show_their_count_and_are_not_the_best(tmp_path):
    fill(tmp_path / "x.db", recipes.get("indiscriminate-instant").narrow(limit=3, **ONE))
    with Store(tmp_path / "x.db") as store:
        keep_batches(store, "image_median", 1)
        document = build(store)
    table, difference = parts(document, Table)[:2]
    assert [row[3].count for row in table.rows] == [6, 6, 3]
    assert [row[3].count for row in difference.rows] == [6, 3]
    assert any("from 3 to 6 batches" in note for note in table.notes)
    pages = {name: FORMATS.get(name).write(document) for name in ("html", "latex", "markdown")}
    assert "| TeBN | image_median | 10.0 (n = 3) | 20.0 (n = 3) |" in pages["markdown"]
    assert re.search(r"\| \*\*30\.3 \(30\.\d–30\.\d\)\*\* \|", pages["markdown"])
    assert "$20.0$ (n = 3)" in pages["latex"]
    assert '>20.0</button><span class="count">n = 3</span>' in pages["html"]


def test_equal_counts_are_not_shown(report):
    document, _ = report("worst-case", methods=["tebn"], limit=3)
    assert not any("Cells are from" in note for table in parts(document, Table) for note in table.notes)
    for name in ("html", "markdown", "latex"):
        page = FORMATS.get(name).write(document)
        assert "; n = " not in re.sub('title="[^"]*"', "", page)
    assert all(scatter.caption == "" for scatter in parts(document, Scatter))


def test_notes_say_how_many_batches_of_each_corruption_there_are(tmp_path):
    recipe = recipes.get("targeted-instant").narrow(limit=3, **ONE)

    def note() -> str:
        with Store(tmp_path / "x.db") as store:
            return next(note for note in parts(build(store), Table)[0].notes if "corruption" in note)

    fill(tmp_path / "x.db", recipe, batches=1)
    assert "One batch of each corruption" in note()
    fill(tmp_path / "x.db", replace(recipe, seeds=(1, 2), estimators=("mean",)), batches=1, prefix="b")
    assert "1 to 3 batches of each corruption" in note()
    with Store(tmp_path / "x.db") as store:
        store.connection.execute("DELETE FROM batches WHERE key LIKE 'b%' OR key LIKE '%0008'")
    assert "One batch of each of 2 to 3 corruptions" in note()


def test_a_terminal_shows_the_main_table_as_text(tmp_path):
    fill(tmp_path / "x.db", recipes.get("epsilon").narrow(limit=1))
    with Store(tmp_path / "x.db") as store:
        ((title, columns, rows),) = headline(store, "epsilon")
    assert "argeted attack" in title
    assert columns[:3] == ["method", "normalisation", "error without attack"]
    assert {row[1] for row in rows} == {"BatchNorm", "MedBN", "image_median"}
    assert all(float(cell) >= 0 for row in rows for cell in row[2:])
