"""A document as LaTeX: tables in the style of booktabs that stand in a paper as they are."""

from __future__ import annotations

import re
import unicodedata

from . import values
from .document import Document, Measure, Part, Table, Text, Value

_HEAD = r"""% Written by medbn report. Each table can be copied on its own; it needs booktabs (and graphicx).
\documentclass{article}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage{textcomp}
\usepackage[a4paper,margin=2.5cm]{geometry}
\usepackage{booktabs}
\usepackage{graphicx}
\usepackage{longtable}
"""
_LONG = 40
"""Tables with more rows than this may break across pages."""
_WIDE = 5
"""Tables with more columns than this are scaled to the width of the text."""

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
    '"': r"\textquotedbl{}",
    "`": r"\textasciigrave{}",
    # After the end of a row these would be read as its arguments.
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "\u2060": "{}",
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


def _letter(letter: str) -> str:
    if letter in _SPECIAL:
        return _SPECIAL[letter]
    if letter.isascii():
        return letter if letter.isprintable() else " "
    # The fonts of T1 hold the letters of Latin scripts; others are named rather than lost, or stopping the compiler.
    latin = unicodedata.name(letter, "").startswith("LATIN") and ord(letter) < 0x180
    return letter if latin else f"{{[}}U+{ord(letter):04X}{{]}}"


def escape(text: str) -> str:
    """Text that LaTeX prints as it is. Two hyphens would become a dash, which no shell knows: something parts them."""
    return "".join(map(_letter, re.sub("-(?=-)", "-\u2060", " ".join(text.split()))))


def _line(text: str) -> str:
    """A line of text with its code."""
    parts = []
    for piece, code in values.spans(text):
        lead, tail = " " * piece[:1].isspace(), " " * piece[-1:].isspace()
        parts.append(rf"\texttt{{{escape(piece)}}}" if code else f"{lead}{escape(piece)}{tail}")
    return "".join(parts).strip()


def _cell(value: Value, best: bool, decimals: int | None, count: int | None) -> str:
    """A value, with its interval as a subscript and its count where one is given; the best is bold."""
    if isinstance(value, str):
        return _line(value)
    if values.number(value) is None:
        return escape(values.shown(value)) or "--"
    text = values.shown(value, decimals).replace("−", "-")
    ends = values.bounds(value) if isinstance(value, Measure) else None
    body = rf"\mathbf{{{text}}}" if best else text
    size = "" if count is None else f" ({escape(values.counted(count))})"
    if ends is None:
        return f"${body}${size}"
    low, high = (values.decimal(end).replace("−", "-") for end in ends)
    return f"${body}_{{[{low},\\,{high}]}}${size}"


def _table(table: Table) -> list[str]:
    columns, rows = values.padded(table)
    if not rows:
        return [r"\noindent Nothing was measured.", ""]
    best, short = values.best(table), values.fewer(table)
    places = [values.places([row[c] for row in rows]) for c in range(len(columns))]
    numeric = [c >= table.labels and not any(isinstance(row[c], str) for row in rows) for c in range(len(columns))]
    spec = "".join("r" if right else "l" for right in numeric)
    head = [" & ".join(map(_line, columns)) + r" \\", r"\midrule"]
    body = [
        " & ".join(_cell(value, (r, c) in best, places[c], short.get((r, c))) for c, value in enumerate(row)) + r" \\"
        for r, row in enumerate(rows)
    ]
    said = ". ".join(filter(None, [_line(table.title).rstrip("."), _line(table.caption)]))
    notes = [rf"\par\smallskip{{\footnotesize {_line(note)}\par}}" for note in table.notes]
    if len(rows) > _LONG:
        start = [rf"\begin{{longtable}}{{{spec}}}", *([rf"\caption{{{said}}}\\"] if said else []), r"\toprule"]
        return [*start, *head, r"\endhead", *body, r"\bottomrule", r"\end{longtable}", *notes, ""]
    inner = [rf"\begin{{tabular}}{{{spec}}}", r"\toprule", *head, *body, r"\bottomrule", r"\end{tabular}"]
    if len(columns) > _WIDE:
        inner = [r"\resizebox{\textwidth}{!}{%", *inner[:-1], inner[-1] + "}"]
    caption = [rf"\caption{{{said}}}"] if said else []
    return [r"\begin{table}[htbp]", r"\centering", *caption, *inner, *notes, r"\end{table}", ""]


def _code(text: str) -> list[str]:
    """Commands, line by line; not verbatim, because that would stop at letters outside the font."""
    lines = [escape(line) or r"\mbox{}" for line in text.strip("\n").splitlines()]
    return [r"\begin{quote}\ttfamily\raggedright", "\\\\\n".join(lines), r"\end{quote}", ""]


def _part(part: Part) -> list[str]:
    if isinstance(part, Text):
        prose = [line for text in values.paragraphs(part.text) for line in (_line(text), "")]
        return _code(part.text) if part.code else prose
    table = values.as_table(part, turned=True)
    assert table is not None
    return _table(table)


def latex(document: Document) -> str:
    """A LaTeX document that compiles with pdflatex."""
    lines = [_HEAD + r"\begin{document}", rf"\section*{{{_line(document.title)}}}"]
    lines += [line for text in values.paragraphs(document.lead) for line in (_line(text), "")]
    if document.series:
        lines.append(r"\begin{description}")
        lines += [rf"\item[{{{_line(name)}}}] {_line(said)}" for name, said in document.series.items()]
        lines += [r"\end{description}", ""]
    for section in document.sections:
        lines.append(rf"\subsection*{{{_line(section.title)}}}")
        lines += [line for text in values.paragraphs(section.lead) for line in (_line(text), "")]
        for part in section.parts:
            lines += _part(part)
        # Tables float, and LaTeX holds only so many back.
        lines += [r"\clearpage", ""]
    return "\n".join([*lines, r"\end{document}"]) + "\n"
