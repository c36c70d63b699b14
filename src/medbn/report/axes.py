"""The frame of a picture: scales, ticks, and places for labels. Plain arithmetic, no drawing library."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from . import markup, values

Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""

LETTER = 6.7
"""About the width of a letter at the pictures' text size, in pixels."""


def nice(low: float, high: float, count: int = 5) -> list[float]:
    """About ``count`` round steps that enclose ``low`` to ``high``; the first and last are the ends of an axis."""
    if high <= low:
        low, high = low - 1, high + 1
    rough = (high - low) / max(count, 1)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * m for m in (1, 2, 2.5, 5, 10) if unit * m >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


def percent_ticks(numbers: Iterable[float], count: int = 5, air: float = 0.02) -> list[float]:
    """Ticks for measures: with a little air, from zero where zero is near, and never beyond 0 and 100 without need."""
    found = list(numbers)
    low, high = min(found), max(found)
    air = air * (high - low) or 1.0
    start = 0.0 if 0 <= low < 0.5 * high else low - air
    floor = 0.0 if low >= 0 else -math.inf
    ceiling = 100.0 if high <= 100 else math.inf
    return [t for t in nice(max(start, floor), min(high + air, ceiling), count) if floor <= t <= ceiling]


@dataclass(frozen=True)
class Frame:
    """The plotting area of an SVG of ``width`` × ``height``, and its two linear scales."""

    width: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float]
    left: float = 44.0
    top: float = 34.0
    right: float = 16.0
    bottom: float = 50.0

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a point of the data stands in the picture."""
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        return (
            self.left + across * (self.width - self.left - self.right),
            self.height - self.bottom - up * (self.height - self.top - self.bottom),
        )

    @property
    def area(self) -> Box:
        """The plotting area."""
        return self.left, self.top, self.width - self.right, self.height - self.bottom

    def draw(self, x_ticks: Sequence[float], y_ticks: Sequence[float], x_label: str, y_label: str) -> str:
        """Grid, ticks and labels. The vertical axis is named above it, where its name can be read straight."""
        left, _, right, bottom = self.area
        parts = []
        for tick in y_ticks:
            _, y = self.at(self.x[0], tick)
            parts.append(f'<path class="grid" d="M{left:.1f} {y:.1f}H{right:.1f}"/>')
            parts.append(
                f'<text class="tick" x="{left - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{_tick(tick)}</text>'
            )
        for tick in x_ticks:
            x, _ = self.at(tick, self.y[0])
            parts.append(f'<path class="axis" d="M{x:.1f} {bottom:.1f}v5"/>')
            parts.append(
                f'<text class="tick" x="{x:.1f}" y="{bottom + 20:.1f}" text-anchor="middle">{_tick(tick)}</text>'
            )
        parts.append(f'<path class="axis" d="M{left:.1f} {bottom:.1f}H{right:.1f}"/>')
        middle = (left + right) / 2
        parts.append(
            f'<text class="name" x="{middle:.1f}" y="{self.height - 8:.1f}" text-anchor="middle"'
            f"{_squeezed(x_label, right - left)}>{markup.escape(x_label)}</text>"
        )
        parts.append(f'<text class="name" x="0" y="14"{_squeezed(y_label, self.width)}>{markup.escape(y_label)}</text>')
        return "\n".join(parts)


def _squeezed(text: str, room: float) -> str:
    """What makes a long name fit: SVG does not break lines."""
    return "" if LETTER * len(text) <= room else f' textLength="{room:.0f}" lengthAdjust="spacingAndGlyphs"'


def _tick(value: float) -> str:
    return markup.escape(values.shown(float(value)))


def overlap(a: Box, b: Box) -> float:
    """The area that two boxes share."""
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


def place_labels(
    points: Sequence[tuple[float, float]],
    texts: Sequence[str],
    frame: Frame,
    lines: Sequence[Box] = (),
    blocked: Sequence[Box] = (),
) -> list[tuple[float, float, str] | None]:
    """A place for the label of each point: x, y and the anchor of its text; None where there is no room.

    Each label takes the first of eight places round its point that covers no mark, other label or ``blocked`` box, and
    as little as possible of the ``lines`` (the intervals). A label that nothing is left for is not drawn: the picture's
    table and the pointer still say it.
    """
    marks = [(x - 6, y - 6, x + 6, y + 6) for x, y in points]
    taken: list[Box] = list(blocked)
    chosen: list[tuple[float, float, str] | None] = []
    for (x, y), text in zip(points, texts, strict=True):
        wide = LETTER * len(text)
        choices: list[tuple[float, float, float, str, Box]] = []
        for order, (dx, dy, anchor) in enumerate(_ROUND):
            start = x + dx - {"start": 0.0, "middle": wide / 2, "end": wide}[anchor]
            box = (start, y + dy - 11, start + wide, y + dy + 4)
            if any(overlap(box, other) for other in (*marks, *taken)) or not _inside(box, frame):
                continue
            choices.append((sum(overlap(box, line) for line in lines) + order, x + dx, y + dy, anchor, box))
        if choices:
            _, at_x, at_y, anchor, box = min(choices)
            taken.append(box)
            chosen.append((at_x, at_y, anchor))
        else:
            chosen.append(None)
    return chosen


_ROUND = (
    (10.0, -8.0, "start"),
    (10.0, 16.0, "start"),
    (-10.0, -8.0, "end"),
    (-10.0, 16.0, "end"),
    (12.0, 4.0, "start"),
    (-12.0, 4.0, "end"),
    (0.0, -14.0, "middle"),
    (0.0, 22.0, "middle"),
)


def _inside(box: Box, frame: Frame) -> bool:
    return box[0] >= frame.left + 2 and box[2] <= frame.width and box[1] >= frame.top - 12 and box[3] <= frame.area[3]
