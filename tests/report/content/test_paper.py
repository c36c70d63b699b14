"""The paper's numbers beside ours."""

import pytest

from medbn.bench import Result, Results, published, recipes
from medbn.report.content.paper import paper_parts
from medbn.report.document import Measure, Table
from tests.report.stores import parts


def _table(document, start: str) -> Table:
    return next(table for table in parts(document, Table) if table.title.startswith(start))


def test_each_of_our_numbers_is_beside_the_printed_one(report):
    document, recipe = report("indiscriminate-instant", data=["cifar10-c"], limit=2)
    table = _table(document, "Table 2")
    assert table.columns[2:5] == ["objective", "BatchNorm, ours", "BatchNorm, paper"]
    rows = [row for row in table.rows if row[2] == "indiscriminate"]
    assert [row[1] for row in rows] == ["TeBN", "TENT", "ETA", "SAR", "SoTTA", "sEMA", "mDIA"]
    for method, row in zip(recipe.methods, rows, strict=True):
        assert isinstance(row[3], Measure)
        printed = published.get("indiscriminate-instant").lookup(dataset="cifar10-c", method=method, estimator="mean")
        assert row[4] == printed


def test_wrong_averages_of_the_paper_are_shown_with_both_numbers(report):
    document, _ = report("cumulative", limit=1)
    disagreements = published.get("cumulative").disagreements()
    assert disagreements
    for _, printed, recomputed in disagreements:
        notes = _table(document, "Table 3").notes
        assert any(f"{printed:.2f}" in note and f"{recomputed:.2f}" in note for note in notes)


def test_without_attack_the_error_is_compared(report):
    document, _ = report("no-attack", data=["cifar10-c"], limit=2)
    table = _table(document, "Table 19")
    assert all(row[2].value == pytest.approx(60.25) for row in table.rows)
    assert "2 of the fifteen corruptions" in table.notes[0]


CLASSIFICATION = [n for n in recipes.available() if recipes.get(n).published not in ((), ("segmentation",))]


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_every_recipe_measures_what_its_tables_print(report, name):
    document, recipe = report(name, data=["cifar10-c"], limit=1)
    table = next(
        table for table in parts(document, Table) if table.title.startswith("Table") and "dataset" in table.columns
    )
    ours = [i for i, column in enumerate(table.columns) if column.endswith(", ours")]
    corruption = table.columns.index("corruption") if "corruption" in table.columns else None
    measured = recipe.corruptions[0].replace("_", " ")
    rows = [row for row in table.rows if row[0] == "cifar10-c" and (corruption is None or row[corruption] == measured)]
    assert rows
    assert all(isinstance(row[i], Measure) for row in rows for i in ours)


def test_table_four_has_the_success_and_the_mean_iou_beside_the_printed_ones():
    cells = list(recipes.get("segmentation-targeted").narrow(estimators=["mean", "median"]).cells())
    right = [[90, 10, 0], [10, 90, 0], [0, 0, 0]]
    batch = {"images": 3, "benign": 2, "pixels": 200, "pixels_clean": 200, "already": 0}
    for which in ("", "_without", "_clean"):
        batch |= {f"wrong{which}": 20, f"confusion{which}": right}
    stored = [Result(str(n), cell, [batch | {"hit": 1}, batch | {"hit": 0}], {}) for n, cell in enumerate(cells)]
    (table,) = paper_parts("segmentation", Results({}, [], stored))
    assert table.title == "Table 4: segmentation"
    objective, metric, ours = (table.columns.index(name) for name in ("objective", "metric", "MedBN, ours"))
    rows = {(row[objective], row[metric]): row for row in table.rows}
    assert set(rows) == {
        ("targeted pixel", "attack success rate"),
        ("none", "mean IoU"),
        ("indiscriminate segmentation", "mean IoU"),
    }
    success = rows["targeted pixel", "attack success rate"]
    assert (success[ours].value, success[ours].count, success[ours + 1]) == (50, 2, 0.0)
    without = rows["none", "mean IoU"]
    assert without[ours].value == pytest.approx(100 * 90 / 110)
    assert without[ours + 1] == 24.24
    assert rows["indiscriminate segmentation", "mean IoU"][ours:] == [None, 21.55]
    assert not any("fifteen" in note for note in table.notes)


def test_table_four_is_shown_beside_other_data_with_a_note_that_says_so():
    cells = [
        *recipes.get("segmentation-targeted").narrow(data=["scenes"], estimators=["mean"]).cells(),
        *recipes.get("segmentation-targeted").narrow(data=["camvid"], estimators=["mean"]).cells(),
    ]
    matrix = {"pixels": 20, "wrong": 2, "confusion": [[9, 1], [1, 9]]}
    without = {f"{name}_without": value for name, value in matrix.items() if name != "pixels"}
    batch = {"images": 3, "benign": 2, "already": 0, "hit": 1, **matrix, **without}
    stored = [Result(str(n), cell, [batch], {}) for n, cell in enumerate(cells)]
    scenes = [result for result in stored if result.cell.setting.data == "scenes"]
    (table,) = paper_parts("segmentation", Results({}, [], scenes))
    success = next(row for row in table.rows if "targeted pixel" in row)
    assert success[table.columns.index("BatchNorm, ours")].value == 100
    assert success[table.columns.index("BatchNorm, paper")] == 69.17
    assert scenes[0].cell.dataset in table.notes[0]
    assert "synthia" in table.notes[0]
    # Results on two other datasets cannot be one number.
    assert paper_parts("segmentation", Results({}, [], stored)) == []
