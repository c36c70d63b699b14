"""A document as Markdown, in the form that GitHub shows. Figures are tables of their numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..document import Curves, Document, Gallery, Heatmap, Part, Scatter, Table, Text, Timeline
from ..formats import register_format
from ..tables import as_table, numeric_columns, pad, shown_counts
from ..values import code_spans, decimal_places, format_full, split_paragraphs


@register_format("markdown", ".md")
def markdown(document: Document) -> str:
    """Return a document as Markdown. Galleries are left out, and sections of galleries alone."""
    lines = [f"# {_line(document.title)}", "", *_prose(document.lead)]
    lines += [f"- **{_line(name)}**: {_line(about)}" for name, about in document.series.items()]
    lines += [""] if document.series else []
    for section in document.sections:
        parts = [part for part in section.parts if not isinstance(part, Gallery)]
        if section.parts and not parts:
            continue
        lines += [f"## {_line(section.title)}", "", *_prose(section.lead)]
        for part in parts:
            lines += _part(part)
    return "\n".join(lines).rstrip() + "\n"


def _part(part: Part) -> list[str]:
    if isinstance(part, Text):
        return _fence(part.text) if part.code else _prose(part.text)
    lines = [f"### {_line(part.title)}", ""] if part.title else []
    if isinstance(part, Heatmap | Scatter | Curves | Timeline) and part.alt:
        lines += [_line(part.alt), ""]
    table = as_table(part, upright=True)
    assert table is not None
    lines += [_line(table.caption), ""] if table.caption else []
    lines += _table(table)
    return lines + [f"- {_line(note)}" for note in table.notes] + ([""] if table.notes else [])


def _table(table: Table) -> list[str]:
    columns, rows = pad(table)
    if not rows:
        return ["Nothing was measured.", ""]
    counts = shown_counts(table)
    places = [decimal_places([row[c] for row in rows]) for c in range(len(columns))]
    rule = ["---:" if right else "---" for right in numeric_columns(table)]
    lines = [_row([_line(column) for column in columns]), _row(rule)]
    for r, row in enumerate(rows):
        cells = [_line(format_full(value, places[c], counts.get((r, c)))) for c, value in enumerate(row)]
        lines.append(_row([f"**{cell}**" if (r, c) in table.best else cell for c, cell in enumerate(cells)]))
    return [*lines, ""]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell or ' ' for cell in cells)} |"


def _prose(text: str) -> list[str]:
    return [line for paragraph in split_paragraphs(text) for line in (_line(paragraph), "")]


def _fence(code: str) -> list[str]:
    """Return a block of code, between fences longer than any inside it."""
    longest = max((len(run) for run in re.findall("`+", code)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence, code.strip("\n").replace("\x00", "\ufffd"), fence, ""]


def _line(text: str) -> str:
    """Return a line of text with its code; a bar in code would end a table's cell, so it is escaped there too."""
    parts = []
    for piece, code in code_spans(text):
        body = "`" + piece.replace("|", "\\|") + "`" if code else _escape(piece)
        # Stripping white space must not join code to the word beside it.
        before, after = " " * piece[:1].isspace(), " " * piece[-1:].isspace()
        parts.append(body if code else f"{before}{body}{after}")
    return "".join(parts).strip()


def _escape(text: str) -> str:
    """Return text that Markdown shows as it is. An underscore inside a word needs no escape."""
    text = re.sub(r"([\\*\[\]|`~#$])", r"\\\1", " ".join(text.split()))
    text = re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", text)
    return re.sub(r"^([-+>])", r"\\\1", text).replace("&", "&amp;").replace("<", "&lt;").replace("\x00", "\ufffd")
