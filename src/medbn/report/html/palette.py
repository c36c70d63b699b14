"""Colours and marks of a page: those of estimators, and the scale of heat maps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from markupsafe import Markup

from ..._styles import COLOURS, MARKS, Style, estimator_styles
from .markup import element

STEPS = 24
"""The number of steps of the heat scale above its lowest colour."""

# Lightness changes in one direction, so that the order is seen by colour-blind readers and in grey print.
_HEAT = {
    "light": ("#fdf7ee", "#f9d9ac", "#ee9f5a", "#c9541f", "#7d2113"),
    "dark": ("#1d232d", "#48302a", "#8a4726", "#d67c34", "#ffd394"),
}

_SHAPES = dict(
    zip(
        MARKS,
        (
            "M-5 0A5 5 0 1 0 5 0A5 5 0 1 0-5 0Z",
            "M-4.5-4.5H4.5V4.5H-4.5Z",
            "M0-5.8L5.6 4.4H-5.6Z",
            "M0-6.2L6.2 0L0 6.2L-6.2 0Z",
            "M0 5.8L5.6-4.4H-5.6Z",
            "M-2-5.5H2V-2H5.5V2H2V5.5H-2V2H-5.5V-2H-2Z",
            "M-5.5-3.5L-3.5-5.5L0-2L3.5-5.5L5.5-3.5L2 0L5.5 3.5L3.5 5.5L0 2L-3.5 5.5L-5.5 3.5L-2 0Z",
            "M0-5.8L5.5-1.8L3.4 4.7H-3.4L-5.5-1.8Z",
            "M0-5.8L5-2.9V2.9L0 5.8L-5 2.9V-2.9Z",
            "M0-6.4L1.6-2.2L6.1-2L2.6 0.8L3.8 5.2L0 2.7L-3.8 5.2L-2.6 0.8L-6.1-2L-1.6-2.2Z",
        ),
        strict=True,
    )
)
"""The outlines of the marks, 16 pixels wide and high at most."""


class Palette:
    """The series of a document and their styles.

    Args:
        names: the series of the document, in order.
        estimators: the registered name of each series that is an estimator. Other series share a colour.
    """

    def __init__(self, names: Iterable[str] = (), estimators: Mapping[str, str] | None = None) -> None:
        self._order = {name: place for place, name in enumerate(dict.fromkeys(names))}
        self._estimators = estimators or {}
        self._styles: dict[str, Style] = {}
        self.names = frozenset(self._order)

    def place(self, name: str) -> int:
        """Return the place of a series in the order; new names get the next."""
        return self._order.setdefault(name, len(self._order))

    def style(self, name: str) -> Style:
        """Return the colour and the mark of a series."""
        if name not in self._styles:
            self.place(name)
            known = {one: self._estimators.get(one, one) for one in self._order}
            styles = estimator_styles(known.values())
            self._styles = {label: styles[known[label]] for label in known}
        return self._styles[name]

    def colour(self, name: str) -> str:
        """Return the class that gives a series its colour."""
        return f"s{self.style(name).colour}"

    def swatch(self, name: str) -> Markup:
        """Return the mark of a series in its colour, to show before its name. Screen readers skip it."""
        mark = draw_mark(self.style(name))
        return element("svg", mark, class_=f"swatch {self.colour(name)}", viewBox="-8 -8 16 16", aria_hidden="true")


def draw_mark(style: Style, x: float = 0.0, y: float = 0.0, title: str = "", open_: bool = False) -> Markup:
    """Return a mark as SVG.

    Args:
        style: its colour and mark.
        x: its place in the figure.
        y: its place in the figure.
        title: shown when the pointer is on it.
        open_: draw it hollow even if its style is filled.
    """
    children = [element("title", title)] if title else []
    kind = "mark" if style.filled and not open_ else "mark open"
    return element("path", *children, class_=kind, transform=f"translate({x:.1f} {y:.1f})", d=_SHAPES[style.mark])


def series_css() -> Markup:
    """Return the style of series: the classes of their colours in light and dark mode."""
    light, dark = ("".join(f"--s{i}:{pair[mode]};" for i, pair in enumerate(COLOURS)) for mode in (0, 1))
    classes = "\n".join(f".s{i}{{--c:var(--s{i})}}" for i in range(len(COLOURS)))
    return Markup(f":root{{{light}}}\n{_in_the_dark(f':root{{{dark}}}')}\n{classes}")


def _channels(colour: str) -> list[float]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def _luminance(channels: list[float]) -> float:
    """Return the relative luminance of a colour, as WCAG 2 defines it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in channels)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _heat(stops: tuple[str, ...], share: float) -> tuple[str, str]:
    """Return the colour at ``share`` of a scale, and the one of black and white that is easier to read on it."""
    at = share * (len(stops) - 1)
    left = min(int(at), len(stops) - 2)
    pairs = zip(_channels(stops[left]), _channels(stops[left + 1]), strict=True)
    mixed = [round(a + (b - a) * (at - left)) for a, b in pairs]
    luminance = _luminance([float(c) for c in mixed])
    dark_ink = (luminance + 0.05) / 0.05 >= 1.05 / (luminance + 0.05)
    return "#" + "".join(f"{c:02x}" for c in mixed), "#000" if dark_ink else "#fff"


def heat_class(value: float, low: float, high: float) -> str:
    """Return the class of a heat map's cell; values beyond the ends of the scale have the colours of the ends.

    The strong colours are at ``high``, which may be the smaller number.
    """
    share = (value - low) / (high - low) if high != low else 0.0
    return f"h{round(min(max(share, 0.0), 1.0) * STEPS)}"


def heat_css() -> Markup:
    """Return the style of heat maps: each class in light and dark mode, and the scales for their legends."""
    blocks = {}
    for mode, stops in _HEAT.items():
        rules = [f":root{{--heat:linear-gradient(to right,{','.join(stops)})}}"]
        for step in range(STEPS + 1):
            ground, ink = _heat(stops, step / STEPS)
            rules.append(f".h{step}{{background:{ground};color:{ink}}}")
        blocks[mode] = "\n".join(rules)
    return Markup(f"{blocks['light']}\n{_in_the_dark(blocks['dark'])}")


def _in_the_dark(rules: str) -> str:
    """Return rules for dark screens; paper is white."""
    return f"@media screen and (prefers-color-scheme: dark) {{\n{rules}\n}}"
