"""Tables before they are written in a format: counts of batches to show, and figures as tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from .document import Curves, Facts, Gallery, Heatmap, Measure, Part, Scatter, Table, Text, Timeline, Value
from .values import finite_number, interval_ends


def pad(table: Table) -> tuple[list[str], list[list[Value]]]:
    """Return the columns and rows of a table, all of one length: short rows get empty cells."""
    width = max([len(table.columns), *(len(row) for row in table.rows)])
    columns = [*table.columns, *[""] * (width - len(table.columns))]
    return columns, [[*row, *[None] * (width - len(row))] for row in table.rows]


def numeric_columns(table: Table) -> list[bool]:
    """Return for each column whether its values are numbers, which are aligned at the right."""
    columns, rows = pad(table)
    return [c >= table.labels and not any(isinstance(row[c], str) for row in rows) for c in range(len(columns))]


def smaller_counts(rows: Sequence[Sequence[Value]]) -> dict[tuple[int, int], int]:
    """Return by (row, column) the counts of measures from fewer batches or targets than others of their column."""
    columns: dict[int, dict[tuple[int, int], int]] = {}
    for r, row in enumerate(rows):
        for c, value in enumerate(row):
            if isinstance(value, Measure) and value.count is not None and finite_number(value) is not None:
                columns.setdefault(c, {})[r, c] = value.count
    return {place: n for column in columns.values() for place, n in column.items() if n < max(column.values())}


def shown_counts(table: Table) -> dict[tuple[int, int], int]:
    """Return by (row, column) the counts to show: those that are smaller than others, or have no interval beside."""
    alone = {
        (r, c): value.count
        for r, row in enumerate(table.rows)
        for c, value in enumerate(row)
        if isinstance(value, Measure) and value.count is not None and interval_ends(value) is None
    }
    return smaller_counts(table.rows) | alone


def as_table(part: Part, upright: bool = False) -> Table | None:
    """Return the numbers of any part as a table; None for text, which has none.

    ``upright`` puts the longer side of a heat map into the rows: fifteen corruptions do not fit across a page.
    """
    if isinstance(part, Table):
        return part
    if isinstance(part, Heatmap):
        return _heatmap_numbers(part, upright)
    if isinstance(part, Scatter):
        return _scatter_numbers(part)
    if isinstance(part, Curves):
        return _curves_numbers(part)
    if isinstance(part, Timeline):
        return _timeline_numbers(part)
    if isinstance(part, Gallery):
        rows = [[label, picture.alt, picture.caption] for label, pictures in part.rows for picture in pictures]
        return Table(part.title, ["Row", "Picture", "Caption"], rows, part.caption)
    if isinstance(part, Text):
        return None
    assert isinstance(part, Facts)
    return Table(part.title, ["Name", "Value"], part.items)


def _heatmap_numbers(part: Heatmap, upright: bool) -> Table:
    grid = [[*line, *[None] * (len(part.columns) - len(line))] for line in part.values]
    columns, rows = part.columns, part.rows
    if upright and len(part.columns) > len(part.rows):
        grid = [[line[c] for line in grid] for c in range(len(part.columns))]
        columns, rows = rows, columns
    named = [[name, *line] for name, line in zip(rows, grid, strict=False)]
    return Table(part.title, ["Name", *columns], named, part.caption)


def _scatter_numbers(part: Scatter) -> Table:
    groups = any(point.group for point in part.points)
    columns = ["Point", "Series", *(["Group"] if groups else []), part.x_label, part.y_label]
    rows: list[list[Value]] = [[p.label, p.series, *([p.group] if groups else []), p.x, p.y] for p in part.points]
    return Table(part.title, columns, rows, part.caption, labels=3 if groups else 2)


def _curves_numbers(part: Curves) -> Table:
    measured = {name: dict(line) for name, line in part.series.items()}
    published = {name: dict(line) for name, line in part.reference.items()}
    places = sorted({x for line in measured.values() for x in line} | {x for line in published.values() for x in line})
    columns = [part.x_label, *measured, *(f"{name}, published" for name in published)]
    rows: list[list[Value]] = [
        [x, *(line.get(x) for line in measured.values()), *(line.get(x) for line in published.values())] for x in places
    ]
    caption = f"{part.y_label}. {part.caption}" if part.caption else part.y_label
    return Table(part.title, columns, rows, caption)


def _timeline_numbers(part: Timeline) -> Table:
    rows: list[list[Value]] = []
    for name, line in part.series.items():
        values = [y for _, y in line if finite_number(y) is not None]
        events = "; ".join(label for _, series, label in part.events if series == name)
        known: list[Value] = [min(values), statistics.median(values), max(values), values[-1]] if values else [None] * 4
        rows.append([name, *known, events])
    return Table(part.title, ["Series", "Least", "Median", "Largest", "Last", "Events"], rows, part.caption)
