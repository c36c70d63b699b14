"""Numbers as a reader sees them, and pictures as the tables of numbers behind them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from .document import Curves, Facts, Gallery, Heatmap, Measure, Part, Scatter, Table, Text, Value

_CODE = re.compile(r"(`[^`\n]+`)")


def number(value: Value) -> float | None:
    """The finite number in ``value``, to sort and compare by; None for text, empty cells, NaN and infinities."""
    bare = value.value if isinstance(value, Measure) else value
    if bare is None or isinstance(bare, str | bool):
        return None
    return float(bare) if math.isfinite(bare) else None


def bounds(measure: Measure) -> tuple[float, float] | None:
    """The interval of a measure, where both ends are finite."""
    low, high = number(measure.low), number(measure.high)
    return None if low is None or high is None else (low, high)


def decimal(value: float) -> str:
    """A per cent with one decimal and a true minus sign; never a negative zero."""
    text = f"{value:.1f}"
    return "0.0" if text == "-0.0" else text.replace("-", "−")


def places(column: Sequence[Value]) -> int | None:
    """How many decimals the fractions of a column have, so that they stand under each other; None: each its own."""
    found = [abs(v) for value in column if not isinstance(value, int) and (v := number(value)) is not None]
    if any(isinstance(value, Measure) for value in column):
        return 1
    if all(v == int(v) for v in found):
        return 0
    largest = max(found)
    return None if largest < 0.1 else 3 if largest < 1 else 2 if largest < 10 else 1


def shown(value: Value, decimals: int | None = None) -> str:
    """A value without its interval: ``38.1`` for measures, at most four digits for other fractions, "" for nothing."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    bare = value.value if isinstance(value, Measure) else value
    if bare is None or math.isnan(bare):
        return ""
    if math.isinf(bare):
        return "∞" if bare > 0 else "−∞"
    if isinstance(value, Measure):
        return decimal(value.value)
    if decimals is not None and not isinstance(bare, int):
        return f"{bare:.{decimals}f}".replace("-", "−")
    # Python's g format turns 12345.6 into 1.235e+04, which nobody wants in a table.
    text = f"{bare:.0f}" if isinstance(bare, int) or abs(bare) >= 1000 else f"{bare:.4g}"
    return text.replace("-", "−")


def interval(measure: Measure) -> str:
    """``36.0–40.2``, or "" where there is none. Beside a minus sign a dash would be misread, so it says "to"."""
    ends = bounds(measure)
    if ends is None:
        return ""
    return (" to " if min(ends) < 0 else "–").join(decimal(end) for end in ends)


def full(value: Value, decimals: int | None = None, count: int | None = None) -> str:
    """A value with its interval in brackets, and with how many batches or targets it is from where that is given."""
    ends = interval(value) if isinstance(value, Measure) else ""
    said = "; ".join(filter(None, [ends, "" if count is None else counted(count)]))
    return f"{shown(value)} ({said})" if said else shown(value, decimals)


def counted(count: int) -> str:
    """How a number of batches or targets stands in a cell."""
    return f"n = {count}"


def remark(measure: Measure) -> str:
    """What is said where the pointer rests."""
    ends = interval(measure)
    size = "" if measure.count is None else counted(measure.count)
    return "; ".join(filter(None, [measure.note, f"95 % interval {ends}" if ends else "", size]))


def spans(text: str) -> Iterator[tuple[str, bool]]:
    """The pieces of a text, and whether each is code (stood between backticks)."""
    for piece in _CODE.split(text):
        if piece:
            yield (piece[1:-1], True) if _CODE.fullmatch(piece) else (piece, False)


def paragraphs(text: str) -> list[str]:
    """A text cut at its blank lines."""
    return [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]


def padded(table: Table) -> tuple[list[str], list[list[Value]]]:
    """The columns and rows of a table, all of one length, so that no renderer meets a ragged one."""
    width = max([len(table.columns), *(len(row) for row in table.rows)])
    columns = [*table.columns, *[""] * (width - len(table.columns))]
    return columns, [[*row, *[None] * (width - len(row))] for row in table.rows]


def fewer(table: Table) -> dict[tuple[int, int], int]:
    """The counts of those measures that are from fewer batches or targets than others of their column, by place.

    With ``across``, than others of their row.
    """
    lines: dict[int, dict[tuple[int, int], int]] = {}
    for r, row in enumerate(table.rows):
        for c, value in enumerate(row):
            if isinstance(value, Measure) and value.count is not None and number(value) is not None:
                lines.setdefault(r if table.across else c, {})[r, c] = value.count
    return {place: n for line in lines.values() for place, n in line.items() if n < max(line.values())}


def best(table: Table) -> set[tuple[int, int]]:
    """The (row, column) places of the best measures of a table; plain numbers (seconds, counts) do not compete.

    They are compared down each column, among the rows that share every label but the last (the defences under one
    method); or, with ``across``, along each row. Those from fewer batches than others do not compete either. Where all
    are equal none is best.
    """
    if table.best is None:
        return set()
    choose = {"low": min, "high": max}[table.best]
    short = fewer(table)
    columns, rows = padded(table)
    groups: dict[object, list[tuple[int, int]]] = {}
    for r, row in enumerate(rows):
        for c in range(table.labels, len(columns)):
            key = r if table.across else (c, *map(str, row[: max(table.labels - 1, 0)]))
            groups.setdefault(key, []).append((r, c))
    found: set[tuple[int, int]] = set()
    for places in groups.values():
        scores = {}
        for r, c in places:
            value = rows[r][c]
            score = number(value) if isinstance(value, Measure) and (r, c) not in short else None
            if score is not None:
                scores[r, c] = score
        if len(set(scores.values())) > 1:
            winner = choose(scores.values())
            found |= {place for place, score in scores.items() if score == winner}
    return found


def _heatmap(part: Heatmap, turned: bool) -> Table:
    grid = [[*line, *[None] * (len(part.columns) - len(line))] for line in part.values]
    names, sides = part.columns, part.rows
    if turned and len(part.columns) > len(part.rows):
        grid = [[line[c] for line in grid] for c in range(len(part.columns))]
        names, sides = sides, names
    return Table(part.title, ["Name", *names], [[n, *line] for n, line in zip(sides, grid, strict=False)], part.caption)


def _scatter(part: Scatter) -> Table:
    shapes = any(point.shape for point in part.points)
    columns = ["Point", "Series", *(["Shape"] if shapes else []), part.x_label, part.y_label]
    rows: list[list[Value]] = [[p.label, p.series, *([p.shape] if shapes else []), p.x, p.y] for p in part.points]
    return Table(part.title, columns, rows, part.caption, labels=3 if shapes else 2)


def _curves(part: Curves) -> Table:
    ours = {name: dict(line) for name, line in part.series.items()}
    theirs = {name: dict(line) for name, line in part.reference.items()}
    places = sorted({x for line in ours.values() for x in line} | {x for line in theirs.values() for x in line})
    columns = [part.x_label, *ours, *(f"{name}, published" for name in theirs)]
    rows: list[list[Value]] = [
        [x, *(line.get(x) for line in ours.values()), *(line.get(x) for line in theirs.values())] for x in places
    ]
    caption = f"{part.y_label}. {part.caption}" if part.caption else part.y_label
    return Table(part.title, columns, rows, caption)


def as_table(part: Part, turned: bool = False) -> Table | None:
    """The numbers of any part as a table; None for text, which has none.

    ``turned`` stands a heat map with its longer side downwards: fifteen corruptions do not fit across a page.
    """
    if isinstance(part, Table):
        return part
    if isinstance(part, Heatmap):
        return _heatmap(part, turned)
    if isinstance(part, Scatter):
        return _scatter(part)
    if isinstance(part, Curves):
        return _curves(part)
    if isinstance(part, Gallery):
        rows = [[label, picture.alt, picture.caption] for label, pictures in part.rows for picture in pictures]
        return Table(part.title, ["Row", "Picture", "Caption"], rows, part.caption)
    if isinstance(part, Text):
        return None
    assert isinstance(part, Facts)
    return Table(part.title, ["Name", "Value"], part.items)
