"""Scatter plots and curves as inline SVG.

Each picture is drawn twice, for wide and for narrow pages, and the style shows one: a wide picture shrunk to a
telephone has letters that nobody can read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from . import axes, markup, values
from .axes import Box, Frame
from .document import Curves, Measure, Point, Scatter
from .palette import Palette, mark, swatch

_SIZES = {"wide": (760.0, 430.0), "narrow": (360.0, 340.0)}
_EMPTY = '<p class="empty">Nothing was measured.</p>'


def _both(title: str, alt: str, draw: Callable[[float, float], str]) -> str:
    """A picture in both sizes, with its description."""
    said = markup.escape(alt or title)
    return "\n".join(
        f'<svg class="chart {name}" viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{said}">\n'
        f"<desc>{said}</desc>\n{draw(width, height)}\n</svg>"
        for name, (width, height) in _SIZES.items()
    )


def _legend(entries: Sequence[tuple[str, str]]) -> str:
    """The legend: (drawing, name) pairs."""
    items = "".join(f"<li>{drawing}<span>{markup.inline(name)}</span></li>" for drawing, name in entries)
    return f'<ul class="legend">{items}</ul>'


def _reach(measure: Measure) -> list[float]:
    """Everything of a measure that the axis must hold."""
    return [measure.value, *(values.bounds(measure) or ())]


def _line(kind: str) -> str:
    return f'<svg class="swatch line" viewBox="0 0 26 16" aria-hidden="true"><path class="{kind}" d="M0 8H26"/></svg>'


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other beats on both axes, from left to right; low is good."""
    kept: list[tuple[float, float]] = []
    for x, y in sorted(set(points)):
        if not kept or y < kept[-1][1]:
            kept.append((x, y))
    return kept


def _stairs(points: Sequence[tuple[float, float]], frame: Frame) -> tuple[str, list[Box]]:
    """The frontier as stairs, and the boxes they fill: nothing that was measured lies below and left of them."""
    places = [frame.at(*point) for point in frontier(points)]
    _, top, right, _ = frame.area
    corners = [(places[0][0], top), places[0]]
    for x, y in places[1:]:
        corners += [(x, corners[-1][1]), (x, y)]
    corners.append((right, corners[-1][1]))
    boxes = [(min(a, c) - 1, min(b, d) - 1, max(a, c) + 1, max(b, d) + 1) for (a, b), (c, d) in pairwise(corners)]
    return f'<path class="frontier" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in corners)}"/>', boxes


def _bars(point: Point, frame: Frame) -> tuple[str, list[Box]]:
    """The intervals of a point, and the boxes they fill."""
    x, y = frame.at(point.x.value, point.y.value)
    path, boxes = "", []
    if across := values.bounds(point.x):
        left, right = (frame.at(end, point.y.value)[0] for end in across)
        path += f"M{left:.1f} {y:.1f}H{right:.1f}M{left:.1f} {y - 3:.1f}v6M{right:.1f} {y - 3:.1f}v6"
        boxes.append((left, y - 2, right, y + 2))
    if along := values.bounds(point.y):
        bottom, top = (frame.at(point.x.value, end)[1] for end in along)
        path += f"M{x:.1f} {bottom:.1f}V{top:.1f}M{x - 3:.1f} {bottom:.1f}h6M{x - 3:.1f} {top:.1f}h6"
        boxes.append((x - 2, top, x + 2, bottom))
    return (f'<path class="error" d="{path}"/>' if path else ""), boxes


@dataclass(frozen=True)
class _Plot:
    """A scatter plot whose points are all finite."""

    part: Scatter
    points: list[Point]
    colours: Palette

    def shape(self, point: Point) -> int:
        """The mark of a point: its own shape's where the plot has shapes, else its series'."""
        shapes = list(dict.fromkeys(p.shape for p in self.points))
        return shapes.index(point.shape) if len(shapes) > 1 else self.colours.place(point.series)

    def draw(self, width: float, height: float) -> str:
        """The plot at one size."""
        x_ticks = axes.percent_ticks([v for p in self.points for v in _reach(p.x)], 6 if width > 500 else 4, 0.1)
        y_ticks = axes.percent_ticks([v for p in self.points for v in _reach(p.y)], air=0.1)
        frame = Frame(width, height, (x_ticks[0], x_ticks[-1]), (y_ticks[0], y_ticks[-1]))
        bars = [_bars(point, frame) for point in self.points]
        places = [frame.at(p.x.value, p.y.value) for p in self.points]
        lines = [box for _, boxes in bars for box in boxes]
        out = [frame.draw(x_ticks, y_ticks, self.part.x_label, self.part.y_label)]
        if self.part.frontier:
            stairs, boxes = _stairs([(p.x.value, p.y.value) for p in self.points], frame)
            out.append(stairs)
            lines += boxes
        for point, (drawn, _) in zip(self.points, bars, strict=True):
            out.append(f'<g class="{self.colours.colour(point.series)}">{drawn}</g>')
        for point, (x, y) in zip(self.points, places, strict=True):
            title = markup.escape(_said(point, self.part))
            drawn = mark(self.shape(point), x, y, title=title)
            out.append(f'<g class="{self.colours.colour(point.series)}">{drawn}</g>')
        out += self.labels(frame, places, lines)
        return "\n".join(out)

    def labels(self, frame: Frame, places: list[tuple[float, float]], lines: list[Box]) -> list[str]:
        """The names beside the points; in a narrow picture of many, of the frontier: the legend says the rest."""
        texts = [point.label for point in self.points]
        if frame.width < 500 and len(texts) > 5:
            kept = frontier([(p.x.value, p.y.value) for p in self.points])
            texts = [p.label if (p.x.value, p.y.value) in kept else "" for p in self.points]
        out, blocked = [], []
        left, _, _, bottom = frame.area
        corner = (left + 8, bottom - 22, left + 70, bottom - 4)
        if self.part.frontier and not any(axes.overlap(corner, box) for box in lines):
            out.append(f'<text class="hint" x="{left + 8:.1f}" y="{bottom - 10:.1f}">↙ better</text>')
            blocked.append(corner)
        for text, label in zip(texts, axes.place_labels(places, texts, frame, lines, blocked), strict=True):
            if text and label:
                x, y, anchor = label
                out.append(
                    f'<text class="point" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{markup.escape(text)}</text>'
                )
        return out

    def legend(self) -> str:
        """Colours for series, marks for shapes, and the frontier."""
        shapes = list(dict.fromkeys(p.shape for p in self.points))
        entries = []
        for name in sorted({p.series for p in self.points}, key=self.colours.place):
            place = 0 if len(shapes) > 1 else self.colours.place(name)
            entries.append((swatch(self.colours.colour(name), place), name))
        if len(shapes) > 1:
            entries += [(swatch("neutral", i, "mark open"), name or "other") for i, name in enumerate(shapes)]
        if self.part.frontier:
            entries.append((_line("frontier"), "frontier: nothing is better on both axes"))
        return _legend(entries)


def _said(point: Point, part: Scatter) -> str:
    name = point.label if point.series in point.label else f"{point.label} ({point.series})"
    return f"{name}: {part.x_label} {values.full(point.x)}, {part.y_label} {values.full(point.y)}"


def scatter(part: Scatter, colours: Palette) -> str:
    """A scatter plot with its legend."""
    points = [p for p in part.points if values.number(p.x) is not None and values.number(p.y) is not None]
    if not points:
        return _EMPTY
    plot = _Plot(part, points, colours)
    return f"{plot.legend()}\n{_both(part.title, part.alt, plot.draw)}"


def _curve(name: str, line: Sequence[tuple[float, Measure]], frame: Frame, colours: Palette) -> str:
    """One series: band of intervals, line, marks."""
    places = [frame.at(x, m.value) for x, m in line]
    ends = [(x, values.bounds(m)) for x, m in line]
    band = [(x, both) for x, both in ends if both]
    out = ""
    if len(band) > 1:
        edge = [frame.at(x, high) for x, (_, high) in band] + [frame.at(x, low) for x, (low, _) in reversed(band)]
        out += f'<path class="band" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in edge)}Z"/>'
    elif band:
        x, (low, high) = band[0]
        (at, bottom), (_, top) = frame.at(x, low), frame.at(x, high)
        out += f'<path class="error" d="M{at:.1f} {bottom:.1f}V{top:.1f}"/>'
    out += f'<path class="line" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in places)}"/>'
    for (x, y), (at, measure) in zip(places, line, strict=True):
        title = markup.escape(f"{name} at {values.shown(at)}: {values.full(measure)}")
        out += mark(colours.place(name), x, y, title=title)
    return f'<g class="{colours.colour(name)}">{out}</g>'


def _x_ticks(found: Sequence[float], width: float) -> list[float]:
    """The measured places where they leave room for their numbers, else round ones."""
    distinct = sorted(set(found))
    span = distinct[-1] - distinct[0]
    gap = min((b - a for a, b in pairwise(distinct)), default=span)
    if not span or gap / span * (width - 80) >= 26:
        return distinct
    return [t for t in axes.nice(distinct[0], distinct[-1], 6) if distinct[0] <= t <= distinct[-1]]


def curves(part: Curves, colours: Palette) -> str:
    """Curves with their legend; published numbers are dashed and their marks hollow."""
    ours = {
        name: sorted(
            ((x, m) for x, m in line if values.number(m) is not None and values.number(x) is not None), key=_at
        )
        for name, line in part.series.items()
    }
    theirs = {
        name: sorted((x, y) for x, y in line if values.number(y) is not None and values.number(x) is not None)
        for name, line in part.reference.items()
    }
    ours, theirs = {n: v for n, v in ours.items() if v}, {n: v for n, v in theirs.items() if v}
    heights = [v for line in ours.values() for _, m in line for v in _reach(m)] + [
        y for line in theirs.values() for _, y in line
    ]
    across = [x for line in ours.values() for x, _ in line] + [x for line in theirs.values() for x, _ in line]
    if not heights:
        return _EMPTY

    def draw(width: float, height: float) -> str:
        x_ticks, y_ticks = _x_ticks(across, width), axes.percent_ticks(heights)
        pad = 0.03 * (max(across) - min(across)) or 1.0
        frame = Frame(width, height, (min(across) - pad, max(across) + pad), (y_ticks[0], y_ticks[-1]))
        out = [frame.draw(x_ticks, y_ticks, part.x_label, part.y_label)]
        for name, line in theirs.items():
            places = [frame.at(x, y) for x, y in line]
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
            marks = "".join(
                mark(colours.place(name), *at, "mark open", markup.escape(f"{name}, published: {values.shown(y)}"))
                for at, (_, y) in zip(places, line, strict=True)
            )
            out.append(f'<g class="{colours.colour(name)}"><path class="line dashed" d="M{path}"/>{marks}</g>')
        out += [_curve(name, line, frame, colours) for name, line in ours.items()]
        return "\n".join(out)

    entries = [(swatch(colours.colour(n), colours.place(n)), n) for n in sorted({*ours, *theirs}, key=colours.place)]
    if theirs:
        entries.append((_line("line dashed neutral"), "published"))
    return f"{_legend(entries)}\n{_both(part.title, part.alt, draw)}"


def _at(place: tuple[float, Measure]) -> float:
    return place[0]
