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


def frontier(points: Sequence[tuple[float, float]], signs: tuple[int, int] = (1, 1)) -> list[tuple[float, float]]:
    """Return the points for which no other is as good on both axes, from the best to the worst on the first one.

    Args:
        points: in any units.
        signs: of each axis; 1 where low numbers are better, −1 where high ones are.
    """
    best: list[tuple[float, float]] = []
    for cost in sorted({(x * signs[0], y * signs[1]) for x, y in points}):
        if not best or cost[1] < best[-1][1]:
            best.append(cost)
    return [(x * signs[0], y * signs[1]) for x, y in best]


@dataclass(frozen=True)
class _Plot:
    """A scatter plot whose points are all finite."""

    part: Scatter
    points: list[Point]
    palette: Palette

    @property
    def signs(self) -> tuple[int, int]:
        """1 for each axis on which low numbers are better, −1 for the others."""
        across, along = (-1 if better == "high" else 1 for better in self.part.better)
        return across, along

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
            stairs, boxes = _draw_frontier(places, self.signs, frame.area)
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
            best = frontier([(p.x.value, p.y.value) for p in self.points], self.signs)
            texts = [text if (p.x.value, p.y.value) in best else "" for text, p in zip(texts, self.points, strict=True)]
        drawn, blocked = [], []
        corner, anchor = _better_corner(self.signs, frame.area)
        if self.part.frontier and not any(overlap(corner, box) for box in lines):
            arrow = {(1, 1): "↙", (-1, 1): "↘", (1, -1): "↖", (-1, -1): "↗"}[self.signs]
            x = corner[0] if anchor == "start" else corner[2]
            drawn.append(element("text", f"{arrow} better", class_="hint", x=x, y=corner[3] - 6, text_anchor=anchor))
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


def _better_corner(signs: tuple[int, int], area: Box) -> tuple[Box, str]:
    """Return where the word "better" is written: in the corner of the plot that is good on both axes; its anchor."""
    left, top, right, bottom = area
    start = left + 8 if signs[0] > 0 else right - 70
    base = bottom - 4 if signs[1] > 0 else top + 20
    return (start, base - 18, start + 62, base), "start" if signs[0] > 0 else "end"


def _draw_frontier(
    places: Sequence[tuple[float, float]], signs: tuple[int, int], area: Box
) -> tuple[Markup, list[Box]]:
    """Return the frontier as steps, with the boxes they fill: no point lies on their good side.

    Args:
        places: of the points in the drawing, where y grows downwards.
        signs: as in ``frontier``.
        area: of the plot.
    """
    left, top, right, bottom = area
    best = frontier(places, (signs[0], -signs[1]))
    corners = [(best[0][0], top if signs[1] > 0 else bottom), best[0]]
    for x, y in best[1:]:
        corners += [(x, corners[-1][1]), (x, y)]
    corners.append((right if signs[0] > 0 else left, corners[-1][1]))
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
