"""The frame of a figure: scales, ticks and the names of the axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ..values import format_value
from .label_placement import LETTER, Box
from .markup import element


def round_steps(low: float, high: float, count: int = 5) -> list[float]:
    """Return about ``count`` round numbers at equal steps, from at most ``low`` to at least ``high``."""
    if high <= low:
        low, high = low - 1, high + 1
    rough = (high - low) / max(count, 1)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * m for m in (1, 2, 2.5, 5, 10) if unit * m >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


def percent_ticks(numbers: Iterable[float]) -> list[float]:
    """Return about five ticks for per cents, which start at zero where that is near, and stay within 0 and 100."""
    values = list(numbers)
    low, high = min(values), max(values)
    # Numbers that differ by rounding alone are the same: no scale could show how they differ.
    air = 0.02 * (high - low) if high - low > 1e-6 else 1.0
    start = 0.0 if 0 <= low < 0.5 * high else low - air
    floor = 0.0 if low >= 0 else -math.inf
    ceiling = 100.0 if high <= 100 else math.inf
    return [t for t in round_steps(max(start, floor), min(high + air, ceiling)) if floor <= t <= ceiling]


def fit_range(numbers: Iterable[float], air: float = 0.06) -> tuple[float, float]:
    """Return the range of an axis of per cents that fits its numbers, with some space at both ends."""
    values = list(numbers)
    low, high = min(values), max(values)
    space = air * (high - low) if high - low > 1e-6 else 1.0
    # A mark at 0 or at 100 needs space too.
    return low - space, high + space


def ticks_within(ends: tuple[float, float], count: int = 5) -> list[float]:
    """Return about ``count`` round per cents inside a range."""
    low, high = max(ends[0], 0.0) if ends[1] > 0 else ends[0], min(ends[1], 100.0) if ends[0] < 100 else ends[1]
    return [tick for tick in round_steps(low, high, count) if low - 1e-9 <= tick <= high + 1e-9]


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
        """Return the place in the figure of a point of the data."""
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        return (
            self.left + across * (self.width - self.left - self.right),
            self.height - self.bottom - up * (self.height - self.top - self.bottom),
        )

    @property
    def area(self) -> Box:
        """The plotting area without the margins."""
        return self.left, self.top, self.width - self.right, self.height - self.bottom

    @property
    def label_area(self) -> Box:
        """The area for labels of points, which may reach into the upper and the right margin."""
        return self.left + 2, self.top - 12, self.width, self.area[3]

    def draw(self, x_ticks: Sequence[float], y_ticks: Sequence[float], x_label: str, y_label: str) -> Markup:
        """Return the grid, the ticks and the labels. The name of the vertical axis is above it, in upright letters."""
        left, _, right, bottom = self.area
        drawn = []
        for tick in y_ticks:
            _, y = self.at(self.x[0], tick)
            drawn.append(element("path", class_="grid", d=f"M{left:.1f} {y:.1f}H{right:.1f}"))
            drawn.append(_text(format_value(float(tick)), "tick", left - 8, y + 4, anchor="end"))
        for tick in x_ticks:
            x, _ = self.at(tick, self.y[0])
            drawn.append(element("path", class_="axis", d=f"M{x:.1f} {bottom:.1f}v5"))
            drawn.append(_text(format_value(float(tick)), "tick", x, bottom + 20, anchor="middle"))
        drawn.append(element("path", class_="axis", d=f"M{left:.1f} {bottom:.1f}H{right:.1f}"))
        drawn.append(_text(x_label, "name", (left + right) / 2, self.height - 8, right - left, anchor="middle"))
        drawn.append(_text(y_label, "name", 0.0, 14.0, self.width))
        return Markup("\n").join(drawn)


def _text(text: str, kind: str, x: float, y: float, room: float = math.inf, anchor: str | None = None) -> Markup:
    """Return a text that is squeezed into its room: SVG does not break lines."""
    fits = LETTER * len(text) <= room
    squeeze: dict[str, str | int] = {} if fits else {"textLength": round(room), "lengthAdjust": "spacingAndGlyphs"}
    return element("text", text, class_=kind, x=x, y=y, text_anchor=anchor, **squeeze)
