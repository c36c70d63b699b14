"""A document as text for people and programs: Markdown, LaTeX, CSV and JSON; pictures are tables of their numbers."""

from __future__ import annotations

import base64
import csv as _csv
import dataclasses
import io
import json as _json
import math
import operator
import re
from collections.abc import Mapping, Sequence
from typing import SupportsFloat, SupportsIndex

from . import values
from .document import Curves, Document, Gallery, Heatmap, Measure, Scatter, Table, Text, Value
from .latex import latex

__all__ = ["csv", "json", "latex", "markdown"]


def _plain(text: str) -> str:
    """Text that Markdown shows as it is; one underscore inside a word means nothing to it and stays readable."""
    text = re.sub(r"([\\*\[\]|`~#$])", r"\\\1", " ".join(text.split()))
    text = re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", text)
    return re.sub(r"^([-+>])", r"\\\1", text).replace("&", "&amp;").replace("<", "&lt;").replace("\x00", "\ufffd")


def _line(text: str) -> str:
    """A line of text with its code; a bar in code would end a table's cell, so it is escaped there too."""
    parts = []
    for piece, code in values.spans(text):
        body = "`" + piece.replace("|", "\\|") + "`" if code else _plain(piece)
        # Stripping white space must not join code to the word beside it.
        lead, tail = " " * piece[:1].isspace(), " " * piece[-1:].isspace()
        parts.append(body if code else f"{lead}{body}{tail}")
    return "".join(parts).strip()


def _markdown_table(table: Table) -> list[str]:
    columns, rows = values.padded(table)
    if not rows:
        return ["Nothing was measured.", ""]
    best, short = values.best(table), values.fewer(table)
    numeric = [c >= table.labels and not any(isinstance(row[c], str) for row in rows) for c in range(len(columns))]
    places = [values.places([row[c] for row in rows]) for c in range(len(columns))]
    lines = [_row([_line(column) for column in columns]), _row(["---:" if right else "---" for right in numeric])]
    for r, row in enumerate(rows):
        cells = [_line(values.full(value, places[c], short.get((r, c)))) for c, value in enumerate(row)]
        lines.append(_row([f"**{cell}**" if (r, c) in best else cell for c, cell in enumerate(cells)]))
    return [*lines, ""]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell or ' ' for cell in cells)} |"


def _fence(code: str) -> list[str]:
    """A block of code between fences longer than any inside it."""
    longest = max((len(run) for run in re.findall("`+", code)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence, code.strip("\n").replace("\x00", "\ufffd"), fence, ""]


def markdown(document: Document) -> str:
    """GitHub's Markdown, readable as it is. It has no pictures, and nothing of what would hold them alone."""
    lines = [f"# {_line(document.title)}", ""]
    lines += [line for text in values.paragraphs(document.lead) for line in (_line(text), "")]
    lines += [f"- **{_line(name)}**: {_line(said)}" for name, said in document.series.items()]
    lines += [""] if document.series else []
    for section in document.sections:
        parts = [part for part in section.parts if not isinstance(part, Gallery)]
        if section.parts and not parts:
            continue
        lines += [f"## {_line(section.title)}", ""]
        lines += [line for text in values.paragraphs(section.lead) for line in (_line(text), "")]
        for part in parts:
            if isinstance(part, Text):
                prose = [line for text in values.paragraphs(part.text) for line in (_line(text), "")]
                lines += _fence(part.text) if part.code else prose
                continue
            lines += [f"### {_line(part.title)}", ""] if part.title else []
            if isinstance(part, Heatmap | Scatter | Curves) and part.alt:
                lines += [_line(part.alt), ""]
            table = values.as_table(part, turned=True)
            assert table is not None
            lines += [_line(table.caption), ""] if table.caption else []
            lines += _markdown_table(table)
            lines += [f"- {_line(note)}" for note in table.notes] + ([""] if table.notes else [])
    return "\n".join(lines).rstrip() + "\n"


def _exact(value: Value) -> str:
    """A value for a program: every digit, "nan" and "inf" where they are, "" for nothing."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    bare = value.value if isinstance(value, Measure) else value
    return repr(bare) if isinstance(bare, int) else repr(float(bare))


def csv(document: Document) -> str:
    """One line per value: section, part, kind, the labels of its row, its column, and the value with its interval."""
    tables = [
        (section.title, type(part).__name__.lower(), table)
        for section in document.sections
        for part in section.parts
        if (table := values.as_table(part)) is not None
    ]
    depth = max((table.labels for _, _, table in tables), default=1)
    out = io.StringIO()
    writer = _csv.writer(out, lineterminator="\n")
    labels = [f"label_{i + 1}" for i in range(depth)]
    writer.writerow(["section", "part", "kind", *labels, "column", "value", "low", "high", "count", "note"])
    for section, kind, table in tables:
        columns, rows = values.padded(table)
        for row in rows:
            names = [_exact(value) for value in row[: table.labels]]
            names += [""] * (depth - len(names))
            for column, value in zip(columns[table.labels :], row[table.labels :], strict=True):
                measure = value if isinstance(value, Measure) else Measure(0.0)
                rest = [_exact(measure.low), _exact(measure.high), _exact(measure.count), measure.note]
                writer.writerow([section, table.title, kind, *names, column, _exact(value), *rest])
    # Many readers stop at a zero byte.
    return out.getvalue().replace("\x00", "\ufffd")


def _data(value: object) -> object:
    """Anything of a document as what JSON knows. Parts say their kind; what is no number in JSON becomes null."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, SupportsIndex):
        return operator.index(value)
    if isinstance(value, SupportsFloat):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _data(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _data(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"kind": type(value).__name__.lower(), **fields}
    assert isinstance(value, Sequence), value
    return [_data(item) for item in value]


def json(document: Document) -> str:
    """The whole document, every digit of it; pictures as base64 of their PNG files."""
    return _json.dumps({"format": 1, **_object(document)}, ensure_ascii=True, allow_nan=False, indent=1) + "\n"


def _object(document: Document) -> dict[str, object]:
    found = _data(document)
    assert isinstance(found, dict)
    return found
