"""A document as CSV: one line per number."""

from __future__ import annotations

import csv as csv_writer
import io
from collections.abc import Sequence

from ..document import Document, Measure, Value
from ..formats import register_format
from ..tables import as_table, pad

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""Text that begins with one of these is a formula to some spreadsheets."""


@register_format("csv", ".csv")
def csv(document: Document) -> str:
    """Return one line per value: section, part, kind, the labels of its row, its column, the value, its interval."""
    tables = [
        (section.title, type(part).__name__.lower(), table)
        for section in document.sections
        for part in section.parts
        if (table := as_table(part)) is not None
    ]
    depth = max((table.labels for _, _, table in tables), default=1)
    labels = [f"label_{i + 1}" for i in range(depth)]
    lines = [_line(["section", "part", "kind", *labels, "column", "value", "low", "high", "count", "note"])]
    for section, kind, table in tables:
        columns, rows = pad(table)
        for row in rows:
            names = [*row[: table.labels], *[None] * (depth - table.labels)]
            for column, value in zip(columns[table.labels :], row[table.labels :], strict=True):
                measure = value if isinstance(value, Measure) else Measure(0.0)
                rest = [measure.low, measure.high, measure.count, measure.note]
                lines.append(_line([section, table.title, kind, *names, column, value, *rest]))
    return "".join(lines)


def _line(cells: Sequence[Value]) -> str:
    """Return one line. Cells with a carriage return are quoted too, which Python does only where it ends lines."""
    out = io.StringIO()
    csv_writer.writer(out, lineterminator="\r\n").writerow(map(_exact, cells))
    return out.getvalue().removesuffix("\r\n") + "\n"


def _exact(value: Value) -> str:
    """Return a value with every digit, "nan" and "inf" where they are, and "" for None.

    A text that a spreadsheet would run as a formula begins with an apostrophe, as OWASP recommends. Many readers stop
    at a zero byte, and Python 3.10 writes none.
    """
    if isinstance(value, str):
        value = value.replace("\x00", "\ufffd")
        return f"'{value}" if value.startswith(_FORMULA) else value
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    bare = value.value if isinstance(value, Measure) else value
    return repr(bare) if isinstance(bare, int) else repr(float(bare))
