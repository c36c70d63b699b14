"""Reports on segmentation: mean IoU, for which higher is better, IoU by class, and picture strips."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from medbn.bench import SCENES, Attack, Recipe, Store
from medbn.report import FORMATS, Document, build
from medbn.report.document import Gallery, Heatmap, Scatter, Table
from tests.report.stores import RIGHT, SEGMENTATION_FACTS, fill_segmentation, parts

NAMES = {"mean": "BatchNorm", "median": "MedBN", "image_median": "image_median"}
EXACT = Attack("indiscriminate_segmentation")
INDISCRIMINATE = Recipe(
    name="streets",
    settings=(SCENES,),
    methods=("tebn",),
    attacks=(EXACT, replace(EXACT, gradient="straight_through")),
    corruptions=("none",),
    axis="gradient",
)
TARGETED = replace(
    INDISCRIMINATE, attacks=tuple(replace(a, objective="targeted_pixel") for a in INDISCRIMINATE.attacks)
)
UNATTACKED = replace(INDISCRIMINATE, attacks=())

Make = Callable[..., Document]


@pytest.fixture
def made(tmp_path: Path) -> Make:
    def make(recipe: Recipe, **options: object) -> Document:
        fill_segmentation(tmp_path / "x.db", recipe, **options)
        with Store(tmp_path / "x.db") as store:
            return build(store)

    return make


def _iou(heatmap: Heatmap) -> dict[str, list[float]]:
    return {
        row: [round(value.value, 6) for value in line] for row, line in zip(heatmap.rows, heatmap.values, strict=True)
    }


def test_the_heat_map_has_the_iou_of_each_class_that_occurs(made: Make) -> None:
    (heatmap,) = (part for part in parts(made(INDISCRIMINATE), Heatmap) if "class" in part.title)
    expected = {}
    for name, right in RIGHT.items():
        worst = right + 2.5 - 10 * (name != "mean")  # a mean has one gradient only
        expected[f"{NAMES[name]}, without attack"] = [90.0, 90.0]
        expected[f"{NAMES[name]}, worst attack"] = [worst, worst]
    assert _iou(heatmap) == expected
    assert heatmap.columns == ["road", "sky"]
    assert heatmap.colours == {"road": (128, 64, 128), "sky": (70, 130, 180)}
    assert heatmap.low_is_worse
    under = heatmap.values[1][0]
    assert under.low < under.value < under.high


def test_without_attack_there_is_one_row_for_each_defence(made: Make) -> None:
    (heatmap,) = parts(made(UNATTACKED), Heatmap)
    assert _iou(heatmap) == {label: [90.0, 90.0] for label in NAMES.values()}


def test_the_best_mean_iou_is_the_highest(made: Make) -> None:
    table = parts(made(INDISCRIMINATE), Table)[0]
    assert table.columns[2:4] == ["mean IoU without attack", "mean IoU under attack, exact"]
    assert "igher is better" in table.caption
    assert [round(row[3].value, 6) for row in table.rows] == [right + 2.5 for right in RIGHT.values()]
    assert sorted(table.best) == [(2, 3), (2, 4), (2, 5)]
    assert any("2 classes (of 3)" in note for note in table.notes)


def test_the_best_attack_success_is_the_lowest(made: Make) -> None:
    table = parts(made(TARGETED), Table)[0]
    assert [row[3].value for row in table.rows] == [100, 0, 0]
    assert [row[-1].value for row in table.rows] == pytest.approx([100, 100 / 6, 100 / 6])
    assert "ower is better" in table.caption


@pytest.mark.parametrize(("recipe", "better"), [(INDISCRIMINATE, ("high", "high")), (TARGETED, ("high", "low"))])
def test_a_scatter_plot_knows_where_it_is_better(made: Make, recipe: Recipe, better: tuple[str, str]) -> None:
    (scatter,) = parts(made(recipe), Scatter)
    assert scatter.better == better


def test_the_first_sentence_says_what_happens_to_the_mean_iou(made: Make) -> None:
    lead = made(INDISCRIMINATE).lead
    assert "mean IoU" in lead
    assert "from 90 to 22 % with BatchNorm" in lead
    assert "from 90 to 42 % with MedBN" in lead


def test_a_strip_shows_each_defence_under_the_attack_that_harms_most(made: Make) -> None:
    strips = parts(made(INDISCRIMINATE), Gallery)
    assert len(strips) == 2
    first = strips[0]
    assert [label for label, _ in first.rows] == ["the batch", *NAMES.values()]
    shared, median = first.rows[0][1], first.rows[2][1]
    assert [picture.png.split()[1] for picture in shared] == [b"image", b"truth", b"clean"]
    assert [picture.png.decode("latin-1")[5:] for picture in median] == [
        f"{name} median straight_through 0" for name in ("without", "under", "malicious")
    ]
    assert "90\u00a0%" in median[0].caption
    assert "40\u00a0%" in median[1].caption
    assert "straight-through" in median[1].caption
    assert first.legend == {"road": (128, 64, 128), "sky": (70, 130, 180), "car": (0, 0, 142)}
    assert all(picture.marked is None for _, pictures in first.rows for picture in pictures)


def test_the_targeted_pixel_is_marked_and_its_class_named(made: Make) -> None:
    first = parts(made(TARGETED), Gallery)[0]
    shared, median = first.rows[0][1], first.rows[2][1]
    assert [picture.marked for picture in (*shared[:2], *median[:2])] == 4 * [(6.5 / 8, 1.5 / 4)]
    assert shared[2].marked is median[2].marked is None
    assert "car" in shared[1].caption
    assert "hit" in median[1].caption


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"classes": "road", "colours": 3, "size": "big"},
        {"classes": ["road", 1, "car"], "colours": [[1, 2], [3, 4, 5]], "size": [0, 0]},
        {"colours": [[999, 0, 0], [True, 0, 0], ["red", 0, 0]], "size": [1, 2, 3]},
    ],
)
def test_a_store_whose_classes_cannot_be_read_has_a_report_with_their_numbers(made: Make, facts: dict) -> None:
    unreadable = {
        name: value for name, value in SEGMENTATION_FACTS.items() if name not in ("classes", "colours", "size")
    }
    document = made(TARGETED, facts=unreadable | facts)
    (heatmap,) = (part for part in parts(document, Heatmap) if "class" in part.title)
    assert heatmap.columns == ["class 0", "class 1"]
    assert heatmap.colours == {}
    assert parts(document, Gallery)[0].rows[1][1][0].marked is None


@pytest.mark.parametrize("recipe", [INDISCRIMINATE, TARGETED, UNATTACKED], ids=["all pixels", "one pixel", "no attack"])
def test_every_format_writes_it(made: Make, recipe: Recipe) -> None:
    pytest.importorskip("jinja2")
    document = made(recipe)
    for name in FORMATS.available():
        text = FORMATS.get(name).write(document)
        assert "road" in text
        assert "NaN" not in text
