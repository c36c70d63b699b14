"""Scatter plots, curves, heat maps and galleries: which there are, and which numbers they show."""

from dataclasses import replace

import pytest

from medbn.bench import Store, recipes
from medbn.report import build
from medbn.report.document import Curves, Gallery, Heatmap, Scatter, Table
from tests.report.stores import fill, keep_batches, parts, set_wrong


def test_points_are_the_numbers_of_the_main_table(report):
    document, _ = report("indiscriminate-instant", data=["cifar10-c"], methods=["tebn"], limit=2)
    (scatter,) = parts(document, Scatter)
    rows = parts(document, Table)[0].rows
    assert [(point.x, point.y) for point in scatter.points] == [(row[2], row[3]) for row in rows]


def test_intervals_of_the_worst_attack_resample_within_corruptions(tmp_path):
    recipe = recipes.get("worst-case").narrow(data=["cifar10-c"], methods=["tebn"], limit=3)
    fill(tmp_path / "x.db", recipe)
    with Store(tmp_path / "x.db") as store:
        for stored in store.cells():
            if stored.cell["corruption"] == recipe.corruptions[0]:
                set_wrong(store, stored.key, "5 + number")
        (first, _) = parts(build(store), Scatter)
    assert len(first.points) == 5
    assert all(point.y.high - point.y.low < 1 for point in first.points)


def test_a_plot_names_the_points_that_are_from_fewer_batches(tmp_path):
    fill(tmp_path / "x.db", recipes.get("worst-case").narrow(data=["cifar10-c"], methods=["tebn"], limit=1))
    with Store(tmp_path / "x.db") as store:
        keep_batches(store, "mad", 1, gradient="smooth")
        document = build(store)
    for scatter in parts(document, Scatter):
        assert "for TeBN + MAD." in scatter.caption
        assert [point.x.count for point in scatter.points if point.series == "MAD"] == [1]
    (row,) = [row for row in parts(document, Table)[0].rows if row[1] == "MAD"]
    assert (row[2].count, row[-1].count) == (2, 1)


@pytest.mark.parametrize(
    ("name", "axis"), [("malicious-indiscriminate", "malicious"), ("batch-size-targeted", "batch_size")]
)
def test_sweeps_are_curves_with_the_papers_numbers(report, name, axis):
    document, recipe = report(name, data=["cifar10-c"], limit=1)
    (curves,) = parts(document, Curves)
    values = sorted({getattr(setting, axis) for setting in recipe.settings})
    assert [x for x, _ in curves.series["MedBN"]] == values
    assert curves.reference["MedBN"]
    assert "image_median" not in curves.reference
    assert not parts(document, Scatter)


def test_the_heat_map_of_one_method_has_estimators_as_rows(report):
    document, _ = report("targeted-instant-per-corruption", data=["cifar10-c"], methods=["tebn"], limit=3)
    (heatmap,) = parts(document, Heatmap)
    assert heatmap.rows == ["BatchNorm", "MedBN", "image_median"]
    assert len(heatmap.columns) == 3
    assert heatmap.values[0][0].value == 100


def test_several_methods_have_a_heat_map_for_each_estimator(report):
    document, _ = report("targeted-instant", data=["cifar10-c"], methods=["tebn", "tent"], limit=3)
    assert [heatmap.rows for heatmap in parts(document, Heatmap)] == [["TeBN", "TENT"]] * 3


def test_a_gallery_begins_with_the_clean_images(report):
    document, _ = report("targeted-instant", data=["cifar10-c"], methods=["tebn"], limit=1)
    (gallery,) = parts(document, Gallery)
    assert [label.split(",")[0] for label, _ in gallery.rows] == [
        "clean (gaussian noise)",
        "BatchNorm",
        "MedBN",
        "image_median",
    ]
    assert [picture.png for _, pictures in gallery.rows for picture in pictures] == [b"\x89PNG clean"] + [
        b"\x89PNG bad"
    ] * 3


def test_a_worst_case_needs_all_attacks_on_the_same_batches(tmp_path):
    fill(tmp_path / "x.db", recipes.get("frontier").narrow(limit=3, estimators=["mean", "median", "image_median@0.7"]))
    with Store(tmp_path / "x.db") as store:
        for gradient in ("exact", "smooth"):
            keep_batches(store, "image_median@0.7", 0, gradient)
        document = build(store)
    table = parts(document, Table)[0]
    *_, straight_through, smooth, worst = next(row for row in table.rows if row[1] == "image_median, prior 0.7")
    assert (straight_through.value, smooth) == (50, None)
    assert worst.value != worst.value
    assert worst.count == 0
    assert [row[-1].count for row in table.rows] == [6, 6, 0]
    assert all(c < 5 or table.rows[r][1] != "image_median, prior 0.7" for r, c in table.best)
    assert any("worst of them" in note and "dash" in note for note in table.notes)
    (scatter,) = parts(document, Scatter)
    assert [point.series for point in scatter.points] == ["BatchNorm", "MedBN"]
    assert "prior 0.7" in scatter.caption
    (heatmap,) = parts(document, Heatmap)
    assert [measure.count for measure in heatmap.values[2]] == [0, 0, 0]


def test_a_mean_counts_in_every_column_whichever_gradient_attacked_it(tmp_path):
    recipe = recipes.get("frontier").narrow(limit=3, estimators=["mean", "median"])
    fill(tmp_path / "x.db", replace(recipe, attacks=recipe.attacks[1:]))  # without exact gradients
    with Store(tmp_path / "x.db") as store:
        keep_batches(store, "mean", 0, "smooth")
        table, difference = parts(build(store), Table)[:2]
    assert [value.value for value in table.rows[0][3:]] == [100] * 3
    assert difference.rows[0][3].count == 6
