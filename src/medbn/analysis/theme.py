"""How figures look: light and dark, readable at the width of a paper's column and in grey."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .. import estimators
from .._errors import unknown_name
from .._styles import estimator_styles

COLUMN = 3.35
"""The width of a column of a paper, in inches."""

PAGE = 6.9
"""The width of a page of a paper, in inches."""


@dataclass(frozen=True)
class Theme:
    """The colours of a figure. Benign and malicious images also differ in their marks and in lightness."""

    name: str
    ground: str
    ink: str
    faint: str
    """Grid lines and frames."""
    benign: str
    malicious: str

    def options(self) -> Any:
        """Return the settings of matplotlib while a figure is made and written."""
        return {
            "font.family": "sans-serif",
            "font.sans-serif": ["DejaVu Sans"],
            "font.size": 7.5,
            "axes.titlesize": 8,
            "axes.labelsize": 7.5,
            "xtick.labelsize": 6.5,
            "ytick.labelsize": 6.5,
            "legend.fontsize": 7,
            "legend.frameon": False,
            "lines.linewidth": 1.2,
            "lines.markersize": 3.5,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.axisbelow": True,
            "axes.linewidth": 0.6,
            "figure.facecolor": self.ground,
            "axes.facecolor": self.ground,
            "savefig.facecolor": self.ground,
            "text.color": self.ink,
            "axes.labelcolor": self.ink,
            "axes.titlecolor": self.ink,
            "axes.edgecolor": self.faint,
            "xtick.color": self.faint,
            "ytick.color": self.faint,
            "xtick.labelcolor": self.ink,
            "ytick.labelcolor": self.ink,
            "grid.color": self.faint,
            "grid.linewidth": 0.4,
            "grid.alpha": 0.5,
            "svg.hashsalt": "medbn",
            "pdf.fonttype": 42,
            "image.interpolation": "nearest",
        }

    def series(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the arguments of ``Axes.plot`` for estimators that are shown together, by their names."""
        styles = estimator_styles(names)
        series = {}
        for name, style in styles.items():
            colour = style.dark if self.name == "dark" else style.light
            series[name] = {
                "color": colour,
                "marker": style.mark,
                "markerfacecolor": colour if style.filled else self.ground,
                "label": estimator_label(name),
            }
        return series


THEMES = {
    "light": Theme("light", "#ffffff", "#1c2430", "#8b95a3", "#7f93ad", "#b3124f"),
    "dark": Theme("dark", "#12161d", "#e6ebf2", "#5d6876", "#6f86a3", "#ff7db0"),
}


def get_theme(name: str) -> Theme:
    """Return the theme of that name, ``"light"`` or ``"dark"``."""
    if name not in THEMES:
        raise unknown_name("theme", name, THEMES)
    return THEMES[name]


def estimator_label(name: str) -> str:
    """Return what reports call an estimator; its name where it is not registered here."""
    try:
        return estimators.get(name).label
    except ValueError:  # stored where an estimator of the user's own was registered
        return name
