"""A document as LaTeX tables, to include in a paper or to copy from."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from ..document import Document, Facts, Gallery, Measure, Part, Table, Text, Value
from ..formats import register_format
from ..tables import as_table, numeric_columns, pad, shown_counts
from ..values import (
    code_spans,
    decimal_places,
    finite_number,
    format_count,
    format_percent,
    format_value,
    interval_ends,
)

_HEAD = r"% Tables written by medbn report. They need \usepackage{booktabs,graphicx}."
_ROWS = 40
"""A table with more rows than this does not fit on a page, and is cut into several."""
_COLUMNS = 5
"""A table with more columns than this is scaled to the width of the text."""
_FLOATS = 18
"""LaTeX fails when more tables than this wait for a place, so ``\\clearpage`` places them before that."""
_END = r"\end{table}"

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    # \textquotedbl needs the T1 fonts, which a paper need not have.
    '"': "''",
    "`": r"\textasciigrave{}",
    # At the start of a row LaTeX would read these as arguments of the end of the row before.
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "\u2060": "{}",  # inserted by escape()
    "–": "--",
    "—": "---",
    "−": "$-$",
    "×": r"$\times$",
    "±": r"$\pm$",
    "·": r"$\cdot$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "≈": r"$\approx$",
    "∞": r"$\infty$",
    "→": r"$\rightarrow$",
    "²": r"$^{2}$",
    "’": "'",
    "‘": "`",
    "“": "``",
    "”": "''",
    "…": r"\ldots{}",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "γ": r"$\gamma$",
    "δ": r"$\delta$",
    "ε": r"$\varepsilon$",
    "λ": r"$\lambda$",
    "μ": r"$\mu$",
    "σ": r"$\sigma$",
    "Δ": r"$\Delta$",
    "\u00a0": "~",
    "\u202f": r"\,",
}


@register_format("latex", ".tex")
def latex(document: Document) -> str:
    """Return the tables of a document, and its figures as tables of their numbers.

    Each is a ``table`` environment in the style of booktabs. The lead, headings, facts and commands are comments.
    """
    lines, tables = [_HEAD, *_comment(document.title), *_comment(document.lead)], 0
    for section in document.sections:
        lines += ["", *_comment(f"{section.title} ".ljust(80, "-"))]
        for part in section.parts:
            written = _part(part)
            tables += written.count(_END)
            if tables > _FLOATS:
                lines, tables = [*lines, "", r"\clearpage"], written.count(_END)
            lines += written
    return "\n".join(lines) + "\n"


def _part(part: Part) -> list[str]:
    if isinstance(part, Text):
        return _comment(part.text)
    if isinstance(part, Facts):
        return [line for name, value in part.items for line in _comment(f"{name}: {value}")]
    if isinstance(part, Gallery):
        return []
    table = as_table(part, upright=True)
    assert table is not None
    return _table(table)


def _table(table: Table) -> list[str]:
    columns, rows = pad(table)
    if not rows:
        return _comment(f"{table.title}: nothing was measured.")
    counts = shown_counts(table)
    places = [decimal_places([row[c] for row in rows]) for c in range(len(columns))]
    alignment = "".join("r" if right else "l" for right in numeric_columns(table))
    head = [rf"\begin{{tabular}}{{{alignment}}}", r"\toprule", _row(map(_line, columns)), r"\midrule"]
    body = [
        _row(_cell(value, (r, c) in table.best, places[c], counts.get((r, c))) for c, value in enumerate(row))
        for r, row in enumerate(rows)
    ]
    caption = ". ".join(filter(None, [_line(table.title).rstrip("."), _line(table.caption)]))
    notes = [rf"\par\smallskip{{\footnotesize {_line(note)}\par}}" for note in table.notes]
    pieces = [body[start : start + _ROWS] for start in range(0, len(body), _ROWS)]
    lines = []
    for number, piece in enumerate(pieces, start=1):
        which = f" ({number} of {len(pieces)})" if len(pieces) > 1 else ""
        tabular = [*head, *piece, r"\bottomrule", r"\end{tabular}"]
        if len(columns) > _COLUMNS:
            tabular = [r"\resizebox{\textwidth}{!}{%", *tabular[:-1], tabular[-1] + "}"]
        lines += ["", r"\begin{table}[htbp]", r"\centering"]
        lines += [rf"\caption{{{caption}{which}}}"] if caption or which else []
        lines += [*tabular, *(notes if number == len(pieces) else []), _END]
    return lines


def _row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _cell(value: Value, best: bool, decimals: int | None, count: int | None) -> str:
    """Return a value, with its interval as a subscript and its count where one is given; the best is bold."""
    if isinstance(value, str):
        return _line(value)
    size = "" if count is None else f" ({escape(format_count(count))})"
    if finite_number(value) is None:
        return (escape(format_value(value)) or "--") + size
    text = format_value(value, decimals).replace("−", "-")
    ends = interval_ends(value) if isinstance(value, Measure) else None
    body = rf"\mathbf{{{text}}}" if best else text
    if ends is None:
        return f"${body}${size}"
    low, high = (format_percent(end).replace("−", "-") for end in ends)
    return f"${body}_{{[{low},\\,{high}]}}${size}"


def _line(text: str) -> str:
    """Return a line of text with its code."""
    parts = []
    for piece, code in code_spans(text):
        before, after = " " * piece[:1].isspace(), " " * piece[-1:].isspace()
        parts.append(rf"\texttt{{{escape(piece)}}}" if code else f"{before}{escape(piece)}{after}")
    return "".join(parts).strip()


def _comment(text: str) -> list[str]:
    """Return the lines of a text as comments."""
    lines = text.strip("\n").splitlines()
    return ["% " + "".join(letter if letter.isprintable() else " " for letter in line).rstrip() for line in lines]


def escape(text: str) -> str:
    """Return text that LaTeX prints as it is. Two hyphens would become a dash, so an empty group separates them."""
    return "".join(map(_letter, re.sub("-(?=-)", "-\u2060", " ".join(text.split()))))


def _letter(letter: str) -> str:
    if letter in _SPECIAL:
        return _SPECIAL[letter]
    if letter.isascii():
        return letter if letter.isprintable() else " "
    # LaTeX's default fonts can set accented Latin letters; others would stop the compiler, so they are named.
    accented = unicodedata.name(letter, "").startswith("LATIN") and len(unicodedata.normalize("NFD", letter)) == 2
    return letter if accented and ord(letter) < 0x180 else f"{{[}}U+{ord(letter):04X}{{]}}"
