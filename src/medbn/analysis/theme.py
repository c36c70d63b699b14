"""How figures look: light and dark, readable at the width of a paper's column and in grey."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .. import estimators
from .._errors import unknown_name
from .._styles import estimator_styles

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

COLUMN = 3.35
"""The width of a column of a paper, in inches."""

PAGE = 6.9
"""The width of a page of a paper, in inches."""

WIDTHS = {"column": COLUMN, "page": PAGE}
"""The widths of figures by their names."""

MANY = 400
"""Points of a scatter plot from which on they are pixels in SVG and PDF files, which would be large otherwise."""


@dataclass(frozen=True)
class Theme:
    """The colours and the width of a figure. Benign and malicious images differ in marks and lightness too."""

    name: str
    ground: str
    ink: str
    faint: str
    """Grid lines and frames."""
    benign: str
    malicious: str
    width: float = PAGE
    """In inches."""

    @property
    def narrow(self) -> bool:
        """Whether a figure has the width of a column, so that panels are below and not beside each other."""
        return self.width < PAGE

    def arrange(self, panels: int) -> tuple[int, int]:
        """Return the rows and the columns of panels that are beside each other on a page.

        >>> THEMES["light"].arrange(3), get_theme("light", "column").arrange(3)
        ((1, 3), (3, 1))
        """
        return (panels, 1) if self.narrow else (1, panels)

    def add_legend(self, canvas: FigureBase, handles: Sequence[Any], labels: Sequence[str], across: int) -> None:
        """Put a legend above the panels, with a number of entries beside each other if the figure is wide enough."""
        canvas.legend(handles, labels, loc="outside upper center", ncols=min(across, 2) if self.narrow else across)

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
    "dark": Theme("dark", "#12161d", "#e6ebf2", "#5d6876", "#587394", "#ff8fbc"),
}


def get_theme(name: str, width: str = "page") -> Theme:
    """Return the theme ``"light"`` or ``"dark"`` for figures as wide as a ``"column"`` or a ``"page"``."""
    if name not in THEMES:
        raise unknown_name("theme", name, THEMES)
    if width not in WIDTHS:
        raise unknown_name("width of figures", width, WIDTHS)
    return replace(THEMES[name], width=WIDTHS[width])


def estimator_label(name: str) -> str:
    """Return what reports call an estimator; its name where it is not registered here."""
    try:
        return estimators.get(name).label
    except ValueError:  # stored where an estimator of the user's own was registered
        return name
