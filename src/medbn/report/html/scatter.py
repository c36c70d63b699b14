"""Scatter plots as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from ..document import Point, Scatter
from ..values import finite_number, format_full, interval_ends
from .axes import Frame, fit_range, ticks_within
from .chart import chart, empty_chart, extent, line_swatch, path
from .label_placement import Box, overlap, place_labels
from .markup import element
from .palette import Palette, draw_mark

_NARROW = 500
"""A figure narrower than this has fewer ticks and labels."""


def draw_scatter(part: Scatter, palette: Palette) -> Markup:
    """Return a scatter plot with its legend; points without finite numbers are left out."""
    points = [p for p in part.points if finite_number(p.x) is not None and finite_number(p.y) is not None]
    if not points:
        return empty_chart()
    plot = _Plot(part, points, palette)
    return chart(part.title, part.alt, plot.legend(), plot.draw)


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points for which no other is as low on both axes, from left to right."""
    best: list[tuple[float, float]] = []
    for x, y in sorted(set(points)):
        if not best or y < best[-1][1]:
            best.append((x, y))
    return best


@dataclass(frozen=True)
class _Plot:
    """A scatter plot whose points are all finite."""

    part: Scatter
    points: list[Point]
    palette: Palette

    def draw(self, width: float, height: float) -> Markup:
        """Return the plot in one size."""
        across = fit_range(v for p in self.points for v in extent(p.x))
        along = fit_range(v for p in self.points for v in extent(p.y))
        x_ticks, y_ticks = ticks_within(across, 6 if width > _NARROW else 4), ticks_within(along)
        frame = Frame(width, height, across, along)
        places = [frame.at(p.x.value, p.y.value) for p in self.points]
        bars = [_draw_intervals(point, frame) for point in self.points]
        lines = [box for _, boxes in bars for box in boxes]
        drawn = [frame.draw(x_ticks, y_ticks, self.part.x_label, self.part.y_label)]
        if self.part.frontier:
            stairs, boxes = _draw_frontier([(p.x.value, p.y.value) for p in self.points], frame)
            drawn.append(stairs)
            lines += boxes
        drawn += [
            element("g", bar, class_=self.palette.colour(point.series))
            for point, (bar, _) in zip(self.points, bars, strict=True)
        ]
        for point, (x, y) in zip(self.points, places, strict=True):
            mark = draw_mark(self.palette.style(point.series), x, y, _describe(point, self.part))
            drawn.append(element("g", mark, class_=self.palette.colour(point.series)))
        return Markup("\n").join([*drawn, *self.draw_labels(frame, places, lines)])

    def draw_labels(self, frame: Frame, places: list[tuple[float, float]], lines: list[Box]) -> list[Markup]:
        """Return the names beside the points, or their groups if there are several.

        A narrow plot of many long names has those of the frontier only.
        """
        grouped = len({point.group for point in self.points}) > 1
        texts = [point.group if grouped else point.label for point in self.points]
        if frame.width < _NARROW and len(texts) > 5 and not grouped:
            best = frontier([(p.x.value, p.y.value) for p in self.points])
            texts = [text if (p.x.value, p.y.value) in best else "" for text, p in zip(texts, self.points, strict=True)]
        drawn, blocked = [], []
        left, _, _, bottom = frame.area
        corner = (left + 8, bottom - 22, left + 70, bottom - 4)
        if self.part.frontier and not any(overlap(corner, box) for box in lines):
            drawn.append(element("text", "↙ better", class_="hint", x=left + 8, y=bottom - 10))
            blocked.append(corner)
        for text, place in zip(texts, place_labels(places, texts, frame.label_area, lines, blocked), strict=True):
            if text and place:
                x, y, anchor = place
                drawn.append(element("text", text, class_="point", x=x, y=y, text_anchor=anchor))
        return drawn

    def legend(self) -> list[tuple[Markup, str]]:
        """Return the entries of the legend: the marks of the series, and the frontier."""
        names = sorted({p.series for p in self.points}, key=self.palette.place)
        entries = [(self.palette.swatch(name), name) for name in names]
        if self.part.frontier:
            entries.append((line_swatch("frontier"), "frontier: nothing is better on both axes"))
        return entries


def _draw_frontier(points: Sequence[tuple[float, float]], frame: Frame) -> tuple[Markup, list[Box]]:
    """Return the frontier as steps, with the boxes they fill: no point lies below and to the left of them."""
    places = [frame.at(*point) for point in frontier(points)]
    _, top, right, _ = frame.area
    corners = [(places[0][0], top), places[0]]
    for x, y in places[1:]:
        corners += [(x, corners[-1][1]), (x, y)]
    corners.append((right, corners[-1][1]))
    boxes = [(min(a, c) - 1, min(b, d) - 1, max(a, c) + 1, max(b, d) + 1) for (a, b), (c, d) in pairwise(corners)]
    return element("path", class_="frontier", d=path(corners)), boxes


def _draw_intervals(point: Point, frame: Frame) -> tuple[Markup, list[Box]]:
    """Return the intervals of a point as bars, with the boxes they fill."""
    x, y = frame.at(point.x.value, point.y.value)
    line, boxes = "", []
    if across := interval_ends(point.x):
        left, right = (frame.at(end, point.y.value)[0] for end in across)
        line += f"M{left:.1f} {y:.1f}H{right:.1f}M{left:.1f} {y - 3:.1f}v6M{right:.1f} {y - 3:.1f}v6"
        boxes.append((left, y - 2, right, y + 2))
    if along := interval_ends(point.y):
        bottom, top = (frame.at(point.x.value, end)[1] for end in along)
        line += f"M{x:.1f} {bottom:.1f}V{top:.1f}M{x - 3:.1f} {bottom:.1f}h6M{x - 3:.1f} {top:.1f}h6"
        boxes.append((x - 2, top, x + 2, bottom))
    return (element("path", class_="error", d=line) if line else Markup("")), boxes


def _describe(point: Point, part: Scatter) -> str:
    name = point.label if point.series in point.label else f"{point.label} ({point.series})"
    return f"{name}: {part.x_label} {format_full(point.x)}, {part.y_label} {format_full(point.y)}"
