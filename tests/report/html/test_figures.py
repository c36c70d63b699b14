"""Figures: the frontier, places of labels, colours that can be read."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from medbn.report import FORMATS, Document
from medbn.report.document import Gallery, Heatmap, Measure, Picture, Point, Scatter, Section
from tests.report.documents import measured, png

pytest.importorskip("jinja2")
from medbn.report.html.palette import STEPS, heat_css
from medbn.report.html.scatter import frontier


def test_no_point_beats_one_of_the_frontier() -> None:
    points = [(1.0, 9.0), (2.0, 5.0), (3.0, 6.0), (4.0, 1.0), (4.0, 0.5), (2.0, 5.0)]
    beaten = {p for p in points for q in points if q != p and q[0] <= p[0] and q[1] <= p[1]}
    assert frontier(points) == sorted(set(points) - beaten)


@pytest.mark.parametrize("signs", [(1, 1), (-1, 1), (1, -1), (-1, -1)])
def test_the_frontier_follows_what_is_better_on_each_axis(signs: tuple[int, int]) -> None:
    points = [(1.0, 9.0), (2.0, 5.0), (3.0, 6.0), (4.0, 1.0), (4.0, 0.5), (0.5, 4.0)]

    def beats(p: tuple[float, float], q: tuple[float, float]) -> bool:
        return p != q and all(sign * a <= sign * b for sign, a, b in zip(signs, p, q, strict=True))

    assert set(frontier(points, signs)) == {q for q in points if not any(beats(p, q) for p in points)}


def _drawn_frontier(better: tuple[str, str]) -> list[tuple[float, float]]:
    points = [Point(str(x), "a", Measure(x), Measure(y)) for x, y in ((10.0, 20.0), (30.0, 60.0), (50.0, 40.0))]
    part = Scatter("t", "", "x", "y", points, better=better)
    page = FORMATS.get("html").write(Document("t", "", [Section("s", [part])]))
    line = re.search(r'class="frontier" d="M([\d. L]*)"', page)
    assert line is not None
    return [(float(x), float(y)) for x, y in (place.split() for place in line.group(1).split("L"))]


@pytest.mark.parametrize(
    ("better", "x", "y"),
    [
        (("low", "low"), min, max),
        (("high", "low"), max, max),
        (("low", "high"), min, min),
        (("high", "high"), max, min),
    ],
)
def test_no_point_is_drawn_on_the_good_side_of_the_frontier(better, x, y) -> None:
    """In the drawing, y grows downwards: the line runs from the bad end of y to the bad end of x."""
    corners = _drawn_frontier(better)
    assert corners[0][0] == x(a for a, _ in corners)
    assert corners[-1][1] == y(b for _, b in corners)


def test_labels_of_points_do_not_cover_each_other() -> None:
    crowd = [Point(f"point {i}", "s", measured(30 + i % 5), measured(40 + i // 5)) for i in range(40)]
    page = FORMATS.get("html").write(Document("t", "", [Section("s", [Scatter("t", "alt", "x", "y", crowd)])]))
    wide = re.search(r'<svg class="chart wide".*?</svg>', page, re.DOTALL)
    assert wide is not None
    boxes = []
    for label in ElementTree.fromstring(wide.group()).iter("text"):
        if label.get("class") == "point":
            x, y, width = float(label.get("x", "")), float(label.get("y", "")), 6.7 * len(label.text or "")
            boxes.append((x - {"start": 0, "middle": width / 2, "end": width}[label.get("text-anchor", "")], y, width))
    assert boxes
    for i, (x, y, width) in enumerate(boxes):
        for other_x, other_y, other in boxes[:i]:
            assert x >= other_x + other - 0.2 or other_x >= x + width - 0.2 or abs(y - other_y) >= 14.8


def _contrast(first: str, second: str) -> float:
    def luminance(colour: str) -> float:
        digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
        channels = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted([luminance(first), luminance(second)])
    return (high + 0.05) / (low + 0.05)


def test_numbers_can_be_read_on_every_colour_of_the_heat_maps() -> None:
    colours = re.findall(r"background:(#\w+);color:(#\w+)", heat_css())
    assert len(colours) == 2 * (STEPS + 1)
    assert all(_contrast(ground, ink) >= 4.5 for ground, ink in colours)


def test_an_estimator_has_the_same_colour_and_mark_on_every_page() -> None:
    swatches = set()
    for names in (["median"], ["mean", "median", "mad"], ["mine", "median"]):
        series = {name.upper(): "" for name in names}
        page = FORMATS.get("html").write(Document("t", "", [], series, {name.upper(): name for name in names}))
        swatches |= set(re.findall(r"(<svg class=.swatch[^>]*><path[^>]*></svg>)MEDIAN", page))
    assert len(swatches) == 1


def test_the_axes_of_a_scatter_plot_fit_its_points() -> None:
    points = [Point(str(x), "a", Measure(x), Measure(y)) for x, y in ((41.0, 90.2), (42.0, 90.4), (43.5, 91.0))]
    page = FORMATS.get("html").write(Document("t", "", [Section("s", [Scatter("t", "", "x", "y", points)])]))
    wide = re.search(r'<svg class="chart wide".*?</svg>', page, re.DOTALL)
    assert wide is not None
    places = [tuple(map(float, place)) for place in re.findall(r"translate\(([\d.]+) ([\d.]+)\)", wide.group())]
    assert len(places) == 3
    for one, size in zip(zip(*places, strict=True), (760 - 60, 430 - 84), strict=True):
        assert max(one) - min(one) > 0.85 * size


def test_points_that_differ_by_rounding_alone_can_be_drawn() -> None:
    points = [Point(str(y), "a", Measure(x), Measure(y)) for x, y in ((10.0, 20.0), (9.999999999999998, 30.0))]
    page = FORMATS.get("html").write(Document("t", "", [Section("s", [Scatter("t", "", "x", "y", points)])]))
    assert page.count('<path class="mark"') >= 2


def _grounds(low_is_worse: bool) -> list[int]:
    values = [[Measure(0.0), Measure(50.0), Measure(100.0)]]
    part = Heatmap("t", "", ["row"], ["a", "b", "c"], values, low_is_worse=low_is_worse)
    page = FORMATS.get("html").write(Document("t", "", [Section("s", [part])]))
    return [int(step) for step in re.findall(r'<td class="h(\d+)"', page)]


def test_strong_colours_are_at_the_worse_end_of_a_heat_map() -> None:
    assert _grounds(low_is_worse=False) == [0, STEPS // 2, STEPS]
    assert _grounds(low_is_worse=True) == [STEPS, STEPS // 2, 0]


def test_classes_have_their_colours_in_legends_and_headings() -> None:
    colours = {"road": (128, 64, 128), "<sky>": (70, 130, 180)}
    heat = Heatmap("t", "", ["row"], list(colours), [[Measure(1.0), Measure(2.0)]], colours=colours)
    strip = Gallery("t", [("row", [Picture(png(0), "alt")])], legend=colours)
    page = FORMATS.get("html").write(Document("t", "", [Section("s", [heat, strip])]))
    assert re.findall(r'"chip" style="background:rgb\(([\d ]+)\)"', page) == 2 * ["128 64 128", "70 130 180"]
    assert page.count("&lt;sky&gt;") >= 2
    with pytest.raises((ValueError, TypeError)):
        FORMATS.get("html").write(
            Document("t", "", [Section("s", [Gallery("t", strip.rows, legend={"x": ("0);color:red", 0, 0)})])])  # type: ignore[dict-item]
        )


def test_a_place_of_a_picture_is_marked_at_its_share_of_the_width_and_height() -> None:
    part = Gallery("t", [("row", [Picture(png(0), "alt", marked=(0.25, 0.75)), Picture(png(1), "alt")])])
    page = FORMATS.get("html").write(Document("t", "", [Section("s", [part])]))
    assert re.findall(r'<i style="([^"]*)"', page) == ["left:25.00%;top:75.00%"]
