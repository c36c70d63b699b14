"""Tables and heat maps: what their templates show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ..document import Heatmap, Measure, Table, Value
from ..tables import pad, shown_counts
from ..values import (
    decimal_places,
    finite_number,
    format_count,
    format_interval,
    format_percent,
    format_value,
    tooltip,
)
from .context import Context
from .markup import breakable, inline, render
from .palette import Palette, heat_class

_UPRIGHT = 8
"""Heat maps with more columns than this have upright headings."""


@dataclass(frozen=True)
class _Column:
    """A column: its name, its heading, whether it has labels or text alone, and the decimals of its numbers."""

    name: str
    heading: Markup
    label: bool
    text: bool
    decimals: int | None


@dataclass(frozen=True)
class _Cell:
    """A cell of a table. ``number`` is the key to sort by, with every digit; ``bar`` the class of the bar under it.

    ``cells`` are the places of the cells that a number is made from, ``link`` is the section that a label leads to.
    """

    kind: str
    text: Markup | str
    number: float | None = None
    swatch: Markup | str = ""
    style: str = ""
    best: bool = False
    title: str = ""
    interval: str = ""
    count: str = ""
    bar: str = ""
    cells: str = ""
    link: str = ""


@dataclass(frozen=True)
class _Row:
    cells: Sequence[_Cell]
    new_group: bool = False


def render_table(table: Table, context: Context, large: bool = False) -> Markup:
    """Return a table in a box that scrolls where it is wider than the page.

    ``large`` shows its numbers in large type, each over a bar in the colour of its row's estimator.
    """
    palette = context.palette
    columns, rows = pad(table)
    counts = shown_counts(table)
    heads = [_column(heading, [row[c] for row in rows], c < table.labels, palette) for c, heading in enumerate(columns)]
    links = [context.groups.get(group, "") for group in table.groups] or [""] * len(rows)
    shown = []
    for r, row in enumerate(rows):
        labels = [format_value(value) for value in row[: table.labels]]
        before = [format_value(value) for value in rows[r - 1][: table.labels]] if r else []
        series = next((label for label in labels if label in palette.names), None)
        bar = (palette.colour(series) if series else "plain") if large else ""
        cells = [
            # A label that repeats the row above is grey, except the last, which distinguishes rows.
            _label(
                value, c < table.labels - 1 and labels[: c + 1] == before[: c + 1], palette, links[r] if c == 0 else ""
            )
            if c < table.labels
            else _cell(value, heads[c], (r, c) in table.best, counts.get((r, c)), bar, context)
            for c, value in enumerate(row)
        ]
        shown.append(_Row(cells, new_group=r > 0 and table.labels > 1 and labels[0] != before[0]))
    return render("table.html", table=table, columns=heads, rows=shown, large=large)


def _column(heading: str, values: list[Value], label: bool, palette: Palette) -> _Column:
    text = any(isinstance(value, str) for value in values) and all(isinstance(value, str | None) for value in values)
    return _Column(heading, _heading(heading, palette), label, text, decimal_places(values))


def _heading(text: str, palette: Palette) -> Markup:
    """Return a label that may break in a narrow column, but not within the name of an estimator."""
    return inline(text) if any(name in text for name in palette.names) else breakable(text)


def _label(value: Value, repeated: bool, palette: Palette, link: str) -> _Cell:
    text = format_value(value)
    style = "repeated" if repeated else "series-name" if text in palette.names else ""
    return _Cell("label", _heading(text, palette), finite_number(value), _swatch(text, palette), style, link=link)


def _swatch(label: str, palette: Palette) -> Markup | str:
    """Return the mark of an estimator to show before its name, as in the figures; "" for other labels."""
    return palette.swatch(label) if label in palette.names else ""


def _cell(value: Value, column: _Column, best: bool, count: int | None, bar: str, context: Context) -> _Cell:
    if isinstance(value, str) or column.text:
        return _Cell("text", inline(format_value(value)))
    number = finite_number(value)
    if not isinstance(value, Measure):
        return _Cell("value", format_value(value, column.decimals), number, best=best)
    return _Cell(
        "value",
        format_value(value),
        number,
        best=best,
        title=tooltip(value),
        interval=format_interval(value),
        count="" if count is None else format_count(count),
        bar=bar if number is not None and 0 <= number <= 100 else "",
        cells=context.cells.spans(value.cells),
    )


def render_heatmap(part: Heatmap, context: Context) -> Markup:
    """Return a heat map: a table with coloured cells, so that it can be read aloud as well."""
    palette, rows = context.palette, []
    for r, name in enumerate(part.rows):
        values = [*(part.values[r] if r < len(part.values) else ()), *[None] * len(part.columns)]
        cells = [_heat_cell(value, part, context) for value in values[: len(part.columns)]]
        rows.append(_Row([_Cell("label", _heading(name, palette), swatch=_swatch(name, palette)), *cells]))
    scale = (format_value(part.low), format_value(part.high))
    return render("heatmap.html", part=part, rows=rows, upright=len(part.columns) > _UPRIGHT, scale=scale)


def _heat_cell(value: Measure | None, part: Heatmap, context: Context) -> _Cell:
    number = finite_number(value)
    if value is None or number is None:
        return _Cell("value", "", title="" if value is None else tooltip(value))
    ends = (part.high, part.low) if part.low_is_worse else (part.low, part.high)
    style = heat_class(number, *ends)
    cells = context.cells.spans(value.cells)
    return _Cell("value", format_percent(number), style=style, title=tooltip(value), cells=cells)
