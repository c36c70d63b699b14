"""The figures of CIFAR-10-C at both widths of a paper: panels, and texts that do not run into each other."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from medbn import analysis

from ..tiers import slow

RESULTS = Path(__file__).parents[2] / "results" / "figures"
NAMES = ("entropy-gradient", "examples", "filters", "illustration", "landscape", "shift", "timeline", "tsne")
STACKED = {"entropy-gradient": 2, "illustration": 3, "landscape": 3, "shift": 4}
"""Figures whose panels are below each other in a column, and how many panels they have."""
DOTS = 100


@pytest.fixture
def draw(monkeypatch):
    """Return a function that draws a figure at a width and returns it with the box of each text, in dots."""
    matplotlib = pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    boxes, draw_text = [], Text.draw

    def record(text, renderer):
        draw_text(text, renderer)
        if text.get_visible() and text.get_text().strip():
            upright = text.get_rotation() % 90 == 0  # others are smaller than their boxes
            boxes.append((text.get_text(), text.get_window_extent(renderer), upright))

    def draw(name, width):
        numbers, theme = read(name), analysis.get_theme("light", width)
        with matplotlib.rc_context(theme.options()):
            figure = Figure(analysis.get(name).size(numbers, theme), layout="constrained", dpi=DOTS)
            FigureCanvasAgg(figure)
            analysis.draw(numbers, figure, theme)
            figure.draw_without_rendering()  # places everything
            with monkeypatch.context() as patch:
                patch.setattr(Text, "draw", record)
                figure.canvas.draw()
        return figure, boxes

    return draw


def read(name, layers="stages"):
    file = {"tsne": "tsne-all-cifar10-c", "illustration": "illustration"}.get(name, f"{name}-cifar10-c")
    numbers = analysis.Numbers.from_json((RESULTS / f"{file}.json").read_text(encoding="utf-8"))
    return analysis.choose_layers(numbers, layers)


@pytest.mark.slow
@pytest.mark.parametrize("width", ["column", "page"])
@pytest.mark.parametrize("name", NAMES)
def test_texts_are_inside_the_figure_and_apart(draw, name, width):
    figure, boxes = draw(name, width)
    across, height = figure.get_size_inches()
    assert across <= {"column": 3.35, "page": 6.9}[width]
    assert len(boxes) >= 5
    for text, box, _ in boxes:
        assert box.x0 > -2, text
        assert box.y0 > -2, text
        assert box.x1 < across * DOTS + 2, text
        assert box.y1 < height * DOTS + 2, text
    upright = [(text, box) for text, box, is_upright in boxes if is_upright]
    for (first, one), (second, other) in combinations(upright, 2):
        beside = min(one.x1, other.x1) - max(one.x0, other.x0)
        below = min(one.y1, other.y1) - max(one.y0, other.y0)
        assert min(beside, below) < 2, (first, second)


@pytest.mark.parametrize("name", ["illustration", "landscape", *slow("entropy-gradient", "shift")])
def test_panels_are_below_each_other_in_a_column(name):
    figure_class = pytest.importorskip("matplotlib.figure").Figure
    titles, lines = {}, {}
    for width in ("column", "page"):
        figure = figure_class()
        analysis.draw(read(name), figure, analysis.get_theme("dark", width))
        titled = [axis for axis in figure.axes if axis.get_title()]
        grids = [axis.get_subplotspec().get_topmost_subplotspec().get_gridspec() for axis in titled]
        across = len(figure.subfigs) or grids[0].ncols
        if figure.subfigs:
            across = len({part.bbox.x0 for part in figure.subfigs})
        titles[width], lines[width] = [axis.get_title() for axis in titled], [len(axis.lines) for axis in figure.axes]
        assert (across == 1) == (width == "column")
    assert len(titles["column"]) == STACKED[name]
    assert set(titles["column"]) == set(titles["page"])
    assert lines["column"] == lines["page"]


def test_one_layer_per_stage_is_chosen_from_all():
    numbers = read("tsne", "all")
    stages = analysis.choose_layers(numbers, "stages")
    assert [panel["layer"] for panel in stages.details["panels"][:5]] == analysis.one_per_stage(
        numbers.distinct("layer")
    )
    assert len(stages.details["panels"]) == 2 * 3 * 5
    assert all(panel in numbers.details["panels"] for panel in stages.details["panels"])
    assert stages.rows == numbers.rows
    assert analysis.choose_layers(numbers, "all") == numbers
    with pytest.raises(ValueError, match="--layers all"):
        analysis.choose_layers(stages, "all")


@pytest.mark.slow
def test_many_points_are_pixels_in_svg():
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    numbers = read("entropy-gradient")
    few = replace(numbers, details={name: first_points(one) for name, one in numbers.details.items()})
    assert b"<image" in analysis.render(numbers)
    assert b"<image" not in analysis.render(few)


def first_points(groups):
    return {group: {name: values[:20] for name, values in one.items()} for group, one in groups.items()}
