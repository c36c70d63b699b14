"""Which colour and mark a defence has, the same in every table and picture, and the colours of heat maps."""

from __future__ import annotations

from collections.abc import Iterable

COLOURS = 6
"""How many series colours style.css defines, ``s0`` and on."""

STEPS = 24
"""How many steps the heat scale has above its lowest colour."""

# Lightness runs one way in each, so that the order survives colour blindness and grey printing.
_HEAT = {
    "light": ("#fdf7ee", "#f9d9ac", "#ee9f5a", "#c9541f", "#7d2113"),
    "dark": ("#1d232d", "#48302a", "#8a4726", "#d67c34", "#ffd394"),
}

_MARKS = (
    "M-5 0A5 5 0 1 0 5 0A5 5 0 1 0-5 0Z",
    "M-4.5-4.5H4.5V4.5H-4.5Z",
    "M0-5.8L5.6 4.4H-5.6Z",
    "M0-6.2L6.2 0L0 6.2L-6.2 0Z",
    "M0 5.8L5.6-4.4H-5.6Z",
    "M-2-5.5H2V-2H5.5V2H2V5.5H-2V2H-5.5V-2H-2Z",
    "M-5.5-3.5L-3.5-5.5L0-2L3.5-5.5L5.5-3.5L2 0L5.5 3.5L3.5 5.5L0 2L-3.5 5.5L-5.5 3.5L-2 0Z",
)  # one more than there are colours, so that series with the same colour have other marks


class Palette:
    """The series of a document in the order of their colours; names it does not know are added as they come."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._order = {name: place for place, name in enumerate(dict.fromkeys(names))}
        self.known = frozenset(self._order)

    def place(self, name: str) -> int:
        """The place of a series, which decides its colour and mark."""
        return self._order.setdefault(name, len(self._order))

    def colour(self, name: str) -> str:
        """The class that gives a series its colour."""
        return f"s{self.place(name) % COLOURS}"


def mark(place: int, x: float = 0.0, y: float = 0.0, kind: str = "mark", title: str = "") -> str:
    """The SVG of a mark; ``title``, already escaped, is said where the pointer rests."""
    inside = f"<title>{title}</title>" if title else ""
    path = _MARKS[place % len(_MARKS)]
    return f'<path class="{kind}" transform="translate({x:.1f} {y:.1f})" d="{path}">{inside}</path>'


def swatch(colour: str, place: int, kind: str = "mark") -> str:
    """A mark on its own, to stand before a name; readers of the page's text do not need it."""
    return f'<svg class="swatch {colour}" viewBox="-8 -8 16 16" aria-hidden="true">{mark(place, kind=kind)}</svg>'


def _channels(colour: str) -> list[float]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def _luminance(channels: list[float]) -> float:
    """Relative luminance, as WCAG 2 defines it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in channels)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _heat(stops: tuple[str, ...], share: float) -> tuple[str, str]:
    """The colour at ``share`` of a scale, and black or white, whichever is easier to read on it."""
    at = share * (len(stops) - 1)
    left = min(int(at), len(stops) - 2)
    pairs = zip(_channels(stops[left]), _channels(stops[left + 1]), strict=True)
    mixed = [round(a + (b - a) * (at - left)) for a, b in pairs]
    luminance = _luminance([float(c) for c in mixed])
    dark_ink = (luminance + 0.05) / 0.05 >= 1.05 / (luminance + 0.05)
    return "#" + "".join(f"{c:02x}" for c in mixed), "#000" if dark_ink else "#fff"


def heat_class(value: float, low: float, high: float) -> str:
    """The class of a heat map's cell; values beyond the ends have the colours of the ends."""
    share = (value - low) / (high - low) if high > low else 0.0
    return f"h{round(min(max(share, 0.0), 1.0) * STEPS)}"


def heat_css() -> str:
    """The style of heat maps: each class in both modes, and the scales for their legends."""
    blocks = {}
    for mode, stops in _HEAT.items():
        rules = [f":root{{--heat:linear-gradient(to right,{','.join(stops)})}}"]
        for step in range(STEPS + 1):
            ground, ink = _heat(stops, step / STEPS)
            rules.append(f".h{step}{{background:{ground};color:{ink}}}")
        blocks[mode] = "\n".join(rules)
    # Paper is white whatever the screen is, so the dark rules are for screens alone.
    return f"{blocks['light']}\n@media screen and (prefers-color-scheme: dark) {{\n{blocks['dark']}\n}}"
