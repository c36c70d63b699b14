"""Draw the errors of several defences on one stream, batch by batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medbn import analysis

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

    from medbn.analysis import Numbers, Theme

Shade = Callable[[Any, "Numbers", "Theme"], None]


@dataclass(frozen=True)
class StreamFigure:
    """A figure with a line for each row of numbers: its ``name``, its ``style`` and its ``errors``, None for a gap.

    Args:
        name: of the files, which end in -light.svg and -dark.svg.
        title: of the figure.
        shade: marks the attacked batches, on an axis that has the lines.
        batches: the label of the axis of batches.
        errors: the label of the axis of errors.
    """

    name: str
    title: str
    shade: Shade
    batches: str
    errors: str

    def write(self, rows: list[dict[str, Any]], folder: Path) -> None:
        """Write the picture into a folder, light and dark."""
        numbers = analysis.Numbers(self.name, {}, rows)
        figure = analysis.Figure(
            title=self.title,
            paper="ours",
            measure=lambda experiment: analysis.Numbers(self.name, {}, []),
            draw=self.draw,
            caption=lambda numbers: "",
            size=lambda numbers, theme: (theme.width, 2.6),
        )
        analysis.register(self.name, figure)
        try:
            for theme in analysis.THEMES:
                picture = analysis.render(numbers, "svg", theme, caption=False)
                (folder / f"{self.name}-{theme}.svg").write_bytes(picture)
        finally:
            analysis.unregister(self.name)

    def draw(self, numbers: Numbers, canvas: FigureBase, theme: Theme) -> None:
        """Draw the error of each row over the batches."""
        axis: Any = canvas.subplots()
        styles = theme.series(row["style"] for row in numbers.rows if row["style"] != "none")
        for row in numbers.rows:
            style = styles.get(row["style"], {"color": theme.ink, "linestyle": ":"})
            errors = [float("nan") if error is None else error for error in row["errors"]]
            axis.plot(range(1, len(errors) + 1), errors, **{**style, "label": row["name"]})
        self.shade(axis, numbers, theme)
        axis.set_xlabel(self.batches)
        axis.set_ylabel(self.errors)
        axis.set_ylim(bottom=0)
        axis.grid(True, axis="y")
        theme.add_legend(canvas, *axis.get_legend_handles_labels(), across=4)
