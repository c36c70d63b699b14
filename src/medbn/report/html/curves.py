"""Curves as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from markupsafe import Markup

from ..document import Curves, Measure
from ..values import finite_number, format_full, format_value, interval_ends
from .axes import Frame, percent_ticks, round_steps
from .chart import chart, empty_chart, extent, line_swatch, path
from .markup import element
from .palette import Palette, draw_mark

_TICK = 26
"""The width that the number of a tick needs, in pixels."""


def draw_curves(part: Curves, palette: Palette) -> Markup:
    """Return curves with their legend; published numbers are dashed lines with hollow marks."""
    measured, published = _finite(part)
    measures = [(x, measure) for line in measured.values() for x, measure in line]
    printed = [point for line in published.values() for point in line]
    if not measures and not printed:
        return empty_chart()
    widths = [x for x, _ in measures] + [x for x, _ in printed]
    heights = [v for _, measure in measures for v in extent(measure)] + [y for _, y in printed]

    def draw(width: float, height: float) -> Markup:
        x_ticks, y_ticks = _x_ticks(widths, width), percent_ticks(heights)
        margin = 0.03 * (max(widths) - min(widths)) or 1.0
        frame = Frame(width, height, (min(widths) - margin, max(widths) + margin), (y_ticks[0], y_ticks[-1]))
        drawn = [frame.draw(x_ticks, y_ticks, part.x_label, part.y_label)]
        drawn += [_draw_published(name, line, frame, palette) for name, line in published.items()]
        drawn += [_draw_curve(name, line, frame, palette) for name, line in measured.items()]
        return Markup("\n").join(drawn)

    names = sorted({*measured, *published}, key=palette.place)
    entries = [(palette.swatch(name), name) for name in names]
    if published:
        entries.append((line_swatch("line dashed neutral"), "published"))
    return chart(part.title, part.alt, entries, draw)


def _finite(part: Curves) -> tuple[dict[str, list[tuple[float, Measure]]], dict[str, list[tuple[float, float]]]]:
    """Return the measured and the published lines, each from left to right, without points that are not finite."""
    measured = {
        name: sorted(
            ((x, m) for x, m in line if finite_number(m) is not None and finite_number(x) is not None),
            key=lambda point: point[0],
        )
        for name, line in part.series.items()
    }
    published = {
        name: sorted((x, y) for x, y in line if finite_number(y) is not None and finite_number(x) is not None)
        for name, line in part.reference.items()
    }
    return {n: line for n, line in measured.items() if line}, {n: line for n, line in published.items() if line}


def _draw_curve(name: str, line: Sequence[tuple[float, Measure]], frame: Frame, palette: Palette) -> Markup:
    """Return one series: the band of its intervals, its line and its marks."""
    places = [frame.at(x, m.value) for x, m in line]
    band = [(x, ends) for x, m in line if (ends := interval_ends(m))]
    drawn = []
    if len(band) > 1:
        edge = [frame.at(x, high) for x, (_, high) in band] + [frame.at(x, low) for x, (low, _) in reversed(band)]
        drawn.append(element("path", class_="band", d=path(edge, "Z")))
    elif band:
        x, ends = band[0]
        drawn.append(element("path", class_="error", d=path([frame.at(x, end) for end in ends])))
    drawn.append(element("path", class_="line", d=path(places)))
    for (x, y), (at, measure) in zip(places, line, strict=True):
        title = f"{name} at {format_value(at)}: {format_full(measure)}"
        drawn.append(draw_mark(palette.style(name), x, y, title))
    return element("g", *drawn, class_=palette.colour(name))


def _draw_published(name: str, line: Sequence[tuple[float, float]], frame: Frame, palette: Palette) -> Markup:
    places = [frame.at(x, y) for x, y in line]
    marks = [
        draw_mark(palette.style(name), *place, f"{name}, published: {format_value(y)}", open_=True)
        for place, (_, y) in zip(places, line, strict=True)
    ]
    return element("g", element("path", class_="line dashed", d=path(places)), *marks, class_=palette.colour(name))


def _x_ticks(values: Sequence[float], width: float) -> list[float]:
    """Return the values that were measured where their numbers have room, else round ones."""
    distinct = sorted(set(values))
    span = distinct[-1] - distinct[0]
    gap = min((b - a for a, b in pairwise(distinct)), default=span)
    if not span or gap / span * (width - 80) >= _TICK:
        return distinct
    return [tick for tick in round_steps(distinct[0], distinct[-1], 6) if distinct[0] <= tick <= distinct[-1]]
