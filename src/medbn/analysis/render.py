"""Write figures as SVG, PDF or PNG files with matplotlib, one by one or on a contact sheet."""

from __future__ import annotations

import importlib.util
import io
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .._errors import unknown_name
from . import registry
from .numbers import Numbers
from .theme import PAGE, Theme, get_theme

if TYPE_CHECKING:
    from matplotlib.figure import Figure, FigureBase, SubFigure

FORMATS = ("svg", "pdf", "png")
RESOLUTION = 200
"""Dots per inch of PNG files."""
TITLE = 0.4
"""Height of a title on a contact sheet, in inches."""
CAPTION_SIZE = 6.5
"""Font size of captions, in points."""


def check_format(form: str, theme: str = "light", width: str = "page") -> None:
    """Raise a ValueError unless figures can be written in this format, theme and width."""
    if form not in FORMATS:
        raise unknown_name("format of figures", form, FORMATS)
    get_theme(theme, width)


def check_drawing() -> None:
    """Raise an ImportError that names the extra if figures cannot be drawn here."""
    for name in ("matplotlib", "sklearn"):
        if importlib.util.find_spec(name) is None:  # an import takes a second, and most figures need no sklearn
            raise ImportError(
                f"drawing a figure needs {name}: pip install 'medbn[figures]'. The numbers alone do not: --json FILE."
            )


def render(
    numbers: Numbers, form: str = "svg", theme: str = "light", *, width: str = "page", caption: bool = True
) -> bytes:
    """Return a figure as the bytes of a file.

    Args:
        numbers: of the figure.
        form: ``"svg"``, ``"pdf"`` or ``"png"``.
        theme: ``"light"`` or ``"dark"``.
        width: ``"column"`` or ``"page"`` of a paper.
        caption: write the caption below the figure.
    """
    look = get_theme(theme, width)
    with _open_figure(look, form) as figure:
        across, height = registry.get(numbers.figure).size(numbers, look)
        height += _caption_height(numbers, across) if caption else 0.0
        figure.set_size_inches(across, height)
        draw(numbers, figure, look, caption_width=across if caption else None)
        return _save(figure, form)


def contact_sheet(figures: Sequence[Numbers], form: str = "svg", theme: str = "light") -> bytes:
    """Return all figures on one sheet, in two columns of about the same height, as the bytes of a file."""
    look = get_theme(theme)
    width = max([PAGE, *(registry.get(numbers.figure).size(numbers, look)[0] for numbers in figures)])
    heights = [registry.get(n.figure).size(n, look)[1] + _caption_height(n, width) + TITLE for n in figures]
    columns: list[list[int]] = [[], []]
    for place in sorted(range(len(figures)), key=lambda i: -heights[i]):  # the highest first, into the shorter column
        min(columns, key=lambda column: sum(heights[i] for i in column)).append(place)
    columns = [sorted(column) for column in columns if column]
    height = max(sum(heights[i] for i in column) for column in columns)
    with _open_figure(look, form) as figure:
        figure.set_size_inches(width * len(columns), height)
        stacks: Any = figure.subfigures(1, len(columns), squeeze=False)
        for column, stack in zip(columns, stacks.flat, strict=True):
            ratios = [heights[i] for i in column]
            rest = height - sum(ratios)
            parts = stack.subfigures(len(ratios) + 1, 1, height_ratios=[*ratios, max(rest, 1e-3)], squeeze=False)
            for place, part in zip(column, parts[:, 0], strict=False):
                _draw_with_title(figures[place], part, look, width, heights[place])
        return _save(figure, form)


def _draw_with_title(numbers: Numbers, part: SubFigure, theme: Theme, width: float, height: float) -> None:
    entry = registry.get(numbers.figure)
    where = "ours" if entry.paper == "ours" else f"the paper's figure{'s' if ',' in entry.paper else ''} {entry.paper}"
    halves: Any = part.subfigures(2, 1, height_ratios=(TITLE, height - TITLE))
    title, canvas = halves
    title.text(0.01, 0.3, f"{numbers.figure}: {entry.title} ({where})", fontsize=9, weight="bold")
    draw(numbers, canvas, theme, width)


def draw(numbers: Numbers, canvas: FigureBase, theme: Theme, caption_width: float | None = None) -> None:
    """Draw numbers into an empty figure, with a caption that is wrapped at a width in inches, or without one."""
    entry = registry.get(numbers.figure)
    entry.draw(numbers, canvas, theme)
    if caption_width:
        text = "\n".join(_wrap(entry.caption(numbers), caption_width))
        canvas.supxlabel(text, x=0.01, ha="left", fontsize=CAPTION_SIZE)


def _caption_height(numbers: Numbers, width: float) -> float:
    lines = len(_wrap(registry.get(numbers.figure).caption(numbers), width))
    return (lines * 1.25 + 0.6) * CAPTION_SIZE / 72


def _wrap(text: str, width: float) -> list[str]:
    """Return the lines of a text in the font of captions, whose letters are about half as wide as they are high."""
    return textwrap.wrap(text, max(20, int(width * 72 / CAPTION_SIZE / 0.54)))


@contextmanager
def _open_figure(theme: Theme, form: str) -> Iterator[Figure]:
    check_format(form)
    check_drawing()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(theme.options()):
        yield Figure(layout="constrained")


def _save(figure: Figure, form: str) -> bytes:
    file = io.BytesIO()
    # Without the date, the same numbers give the same file.
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[form]
    figure.savefig(file, format=form, dpi=RESOLUTION, metadata=metadata)
    return file.getvalue()
