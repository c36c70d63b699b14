"""What scatter plots and curves share.

A figure is drawn twice, for wide and for narrow pages, and the style shows one of the drawings: a wide figure shrunk to
the width of a phone has letters that are too small to read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from ..document import Measure
from ..values import interval_ends
from .markup import element, render

_SIZES = {"wide": (760.0, 430.0), "narrow": (360.0, 340.0)}


def chart(
    title: str,
    alt: str,
    entries: Sequence[tuple[Markup, str]],
    draw: Callable[[float, float], Markup],
    height: float | None = None,
) -> Markup:
    """Return a figure in both sizes under its legend.

    Args:
        title: used where ``alt`` is empty.
        alt: the figure in words.
        entries: of the legend: drawing and name.
        draw: returns the figure for a width and a height.
        height: of both drawings; None for those of a plot.
    """
    sizes = {size: (width, usual if height is None else height) for size, (width, usual) in _SIZES.items()}
    drawings = [
        element(
            "svg",
            Markup("\n"),
            element("desc", alt or title),
            Markup("\n"),
            draw(width, tall),
            Markup("\n"),
            class_=f"chart {size}",
            viewBox=f"0 0 {width:.0f} {tall:.0f}",
            role="img",
            aria_label=alt or title,
        )
        for size, (width, tall) in sizes.items()
    ]
    return render("chart.html", entries=entries, drawings=drawings)


def empty_chart() -> Markup:
    """Return the text that replaces a figure without numbers."""
    return Markup('<p class="empty">Nothing was measured.</p>')


def extent(measure: Measure) -> list[float]:
    """Return all numbers of a measure that an axis must include."""
    return [measure.value, *(interval_ends(measure) or ())]


def path(points: Sequence[tuple[float, float]], end: str = "") -> str:
    """Return straight lines through points as the ``d`` of a path."""
    return f"M{'L'.join(f'{x:.1f} {y:.1f}' for x, y in points)}{end}"


def line_swatch(kind: str) -> Markup:
    """Return a short line of a class, for a legend."""
    line = element("path", class_=kind, d="M0 8H26")
    return element("svg", line, class_="swatch line", viewBox="0 0 26 16", aria_hidden="true")
