"""A document as CSV: one line per number."""

from __future__ import annotations

import csv as csv_writer
import io

from ..document import Document, Measure, Value
from ..formats import register_format
from ..tables import as_table, pad


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
    out = io.StringIO()
    writer = csv_writer.writer(out, lineterminator="\n")
    labels = [f"label_{i + 1}" for i in range(depth)]
    writer.writerow(["section", "part", "kind", *labels, "column", "value", "low", "high", "count", "note"])
    for section, kind, table in tables:
        columns, rows = pad(table)
        for row in rows:
            names = [_exact(value) for value in row[: table.labels]]
            names += [""] * (depth - len(names))
            for column, value in zip(columns[table.labels :], row[table.labels :], strict=True):
                measure = value if isinstance(value, Measure) else Measure(0.0)
                rest = [_exact(measure.low), _exact(measure.high), _exact(measure.count), measure.note]
                writer.writerow([section, table.title, kind, *names, column, _exact(value), *rest])
    # Many readers stop at a zero byte.
    return out.getvalue().replace("\x00", "\ufffd")


def _exact(value: Value) -> str:
    """Return a value with every digit, "nan" and "inf" where they are, and "" for None."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    bare = value.value if isinstance(value, Measure) else value
    return repr(bare) if isinstance(bare, int) else repr(float(bare))
