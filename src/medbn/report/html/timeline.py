"""Timelines as inline SVG: one strip per series, with shaded stretches and marked events."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from ..document import Timeline
from ..values import finite_number, format_value
from .axes import round_steps
from .chart import chart, empty_chart, path
from .markup import element

STRIP, LINE, TOP, BOTTOM = 64.0, 36.0, 18.0, 44.0
"""The height of a strip, of the curve in it, and of the space above all and below all."""
LEFT, RIGHT = 8.0, 8.0


def draw_timeline(part: Timeline) -> Markup:
    """Return the strips of a timeline, with the smallest and the largest value of each."""
    strips = {
        name: [(x, y) for x, y in line if finite_number(x) is not None and finite_number(y) is not None]
        for name, line in part.series.items()
    }
    strips = {name: line for name, line in strips.items() if line}
    if not strips:
        return empty_chart()
    places = [x for line in strips.values() for x, _ in line]
    first, last = min(places), max(places)
    height = TOP + STRIP * len(strips) + BOTTOM

    def draw(width: float, height: float) -> Markup:
        def across(x: float) -> float:
            return LEFT + (width - LEFT - RIGHT) * ((x - first) / (last - first) if last > first else 0.5)

        bottom = height - BOTTOM
        drawn = [_span(across(max(a, first)), across(min(b, last)), bottom, label) for a, b, label in part.spans]
        for row, (name, line) in enumerate(strips.items()):
            events = [(across(x), label) for x, series, label in part.events if series == name]
            drawn.append(_strip(name, line, TOP + STRIP * row, across, width, events))
        drawn += [_event(across(x), TOP, bottom, label) for x, series, label in part.events if not series]
        ticks = [tick for tick in round_steps(first, last, 6) if first <= tick <= last]
        drawn += [_text(format_value(float(tick)), "tick", across(tick), bottom + 18, "middle") for tick in ticks]
        drawn.append(_text(part.x_label, "name", width / 2, height - 6, "middle"))
        return Markup("\n").join(drawn)

    return chart(part.title, part.alt, (), draw, height)


def _strip(
    name: str,
    line: Sequence[tuple[float, float]],
    top: float,
    across: Callable[[float], float],
    width: float,
    events: Sequence[tuple[float, str]],
) -> Markup:
    """Return the curve of one series between its smallest and its largest value."""
    low, high = min(y for _, y in line), max(y for _, y in line)
    floor = top + STRIP - 6

    def up(y: float) -> float:
        return floor - LINE * ((y - low) / (high - low) if high > low else 0.0)

    drawn = [
        _text(name, "name", LEFT + 4, top + 16),
        _text(f"{format_value(low)} to {format_value(high)}", "tick", width - RIGHT, top + 16, "end"),
        element("path", class_="grid", d=f"M{LEFT:.1f} {floor:.1f}H{width - RIGHT:.1f}"),
        element("path", class_="line", d=path([(across(x), up(y)) for x, y in line])),
    ]
    return element("g", *drawn, *(_event(x, top + 20, floor, label) for x, label in events), class_="s1")


def _span(begin: float, end: float, bottom: float, label: str) -> Markup:
    """Return a shaded stretch of the whole height with its label above."""
    area = path([(begin, TOP), (end, TOP), (end, bottom), (begin, bottom)], "Z")
    shade = element("g", element("path", class_="band", d=area), class_="s5")
    return shade + _text(label, "tick", begin + 3, TOP - 5)


def _event(x: float, top: float, bottom: float, label: str) -> Markup:
    """Return a vertical line whose label is shown when the pointer is on it."""
    line = element("path", class_="line", d=f"M{x:.1f} {top:.1f}V{bottom:.1f}")
    return element("g", element("title", label), line, class_="s0 event")


def _text(text: str, kind: str, x: float, y: float, anchor: str | None = None) -> Markup:
    return element("text", text, class_=kind, x=x, y=y, text_anchor=anchor)
