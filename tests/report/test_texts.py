"""The other formats, read back by readers that are not ours."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from medbn.report import texts
from medbn.report.document import Curves, Document, Gallery, Heatmap, Measure, Scatter, Section, Table, Text
from tests.report.documents import NASTY, demo, nasty

BOTH = pytest.mark.parametrize("document", [demo(), nasty()], ids=["demo", "nasty"])


def _rows(document: Document) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(texts.csv(document), newline=""), strict=True))


def _measures(document: Document) -> Iterator[Measure]:
    """Every measure of a document, found without the code under test."""
    for section in document.sections:
        for part in section.parts:
            if isinstance(part, Table):
                yield from (value for row in part.rows for value in row if isinstance(value, Measure))
            elif isinstance(part, Heatmap):
                yield from (value for row in part.values for value in row if value is not None)
            elif isinstance(part, Scatter):
                yield from (value for point in part.points for value in (point.x, point.y))
            elif isinstance(part, Curves):
                yield from (value for line in part.series.values() for _, value in line)


def _key(*numbers: float | int | None) -> tuple[str, ...]:
    return tuple("" if n is None else repr(float(n)) for n in numbers)


@BOTH
def test_csv_holds_every_measure_exactly(document: Document) -> None:
    expected = sorted(_key(m.value, m.low, m.high, m.count) for m in _measures(document))
    found = []
    for row in _rows(document):
        try:
            numbers = [float(row[name]) if row[name] else None for name in ("value", "low", "high", "count")]
        except ValueError:
            continue  # a text
        found.append(_key(*numbers))
    # Plain numbers of tables stand there too; every measure must be among them, as often as it occurs.
    for measure in expected:
        found.remove(measure)


def test_csv_says_where_each_number_stands() -> None:
    rows = _rows(demo())
    heat = [row for row in rows if row["kind"] == "heatmap" and row["column"] == "fog"]
    assert {row["label_1"] for row in heat} >= {"TeBN, BatchNorm", "TENT, image_median"}
    paper = [row for row in rows if row["section"] == "Beside the paper" and row["label_1"] == "sEMA"]
    assert [(row["label_2"], row["column"], row["value"]) for row in paper] == [
        ("MedBN", "Ours", ""),
        ("MedBN", "Published", "11.3"),
        ("MedBN", "Difference", ""),
        ("MedBN", "Remark", "not run"),
    ]
    curve = [row for row in rows if row["kind"] == "curves" and row["label_1"] == "40"]
    assert {row["column"]: row["value"] for row in curve}["MedBN, published"] == "33.1"


@BOTH
def test_json_is_lossless(document: Document) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    data = json.loads(texts.json(document), parse_constant=refuse)
    assert data["title"] == document.title
    assert data["series"] == dict(document.series)
    assert [section["title"] for section in data["sections"]] == [section.title for section in document.sections]

    def walk(value: object) -> Iterator[dict[str, object]]:
        if isinstance(value, dict):
            if value.get("kind") == "measure":
                yield value
            for item in value.values():
                yield from walk(item)
        elif isinstance(value, list):
            for item in value:
                yield from walk(item)

    def known(number: float | None) -> float | None:
        return number if number is not None and math.isfinite(number) else None

    expected = [(known(m.value), known(m.low), known(m.high), m.count, m.note) for m in _measures(document)]
    assert [(m["value"], m["low"], m["high"], m["count"], m["note"]) for m in walk(data["sections"])] == expected


def test_json_holds_the_pictures() -> None:
    gallery = next(p for s in demo().sections for p in s.parts if isinstance(p, Gallery))
    data = json.loads(texts.json(demo()))
    part = next(p for s in data["sections"] for p in s["parts"] if p["kind"] == "gallery")
    assert base64.b64decode(part["rows"][0][1][0]["png"]) == gallery.rows[0][1][0].png


@BOTH
def test_markdown_tables_have_as_many_cells_in_each_row(document: Document) -> None:
    outside = re.sub(r"^(`{3,})\n.*?^\1$", "", texts.markdown(document), flags=re.DOTALL | re.MULTILINE)
    tables = re.findall(r"(?:^\|.*\n?)+", outside, re.MULTILINE)
    assert tables
    for table in tables:
        lines = table.strip().split("\n")
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
        assert len(widths) == 1, table
        assert re.fullmatch(r"\|( ---:? \|)+", lines[1])


def test_markdown_leaves_out_sections_of_pictures_alone() -> None:
    text = texts.markdown(demo())
    assert "## Examples" not in text
    assert "Clean and poisoned" not in text
    assert "## Repeat it" in text


def test_markdown_is_read_as_it_was_meant() -> None:
    reader = pytest.importorskip("markdown_it").MarkdownIt("commonmark").enable("table")
    page = reader.render(texts.markdown(nasty()))
    assert "<script>" not in page
    assert f"<h1>{_html(NASTY)}</h1>" in page
    code = next(p for s in nasty().sections for p in s.parts if isinstance(p, Text) and p.code)
    body = code.text.replace("\x00", "\ufffd").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert f"<code>{body.replace(chr(34), '&quot;')}\n</code>" in page


def _html(text: str) -> str:
    """What a Markdown reader makes of a text with code between backticks."""
    text = text.replace("\x00", "\ufffd").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub("`(.*?)`", r"<code>\1</code>", text.replace('"', "&quot;"))


@BOTH
def test_latex_is_balanced_and_escaped(document: Document) -> None:
    source = texts.latex(document)
    bare = re.sub(r"\\[\\{}$&#%_]", "", re.sub(r"(?<!\\)%.*", "", source))
    depth = 0
    for letter in bare:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        assert depth >= 0
    assert depth == 0
    assert bare.count("$") % 2 == 0
    assert "#" not in bare
    stack = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", source):
        if kind == "begin":
            stack.append(name)
        else:
            assert stack.pop() == name
    assert stack == []
    without_maths = re.sub(r"\$[^$]*\$", "", bare)
    assert not re.search(r"[_^~|<>\"]", without_maths)


@BOTH
def test_latex_tables_have_as_many_cells_as_columns(document: Document) -> None:
    for spec, body in re.findall(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", texts.latex(document), re.DOTALL):
        rows = [line for line in body.split("\n") if line.endswith(r"\\")]
        assert {len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows} == {len(spec)}


def test_latex_shows_intervals_and_the_best() -> None:
    source = texts.latex(demo())
    assert r"image\_median & $\mathbf{28.9}_{[26.8,\,31.0]}$" in source
    assert r"medbn run demo -{}-store demo.sqlite" in source


def test_long_latex_tables_may_break() -> None:
    table = Table("t", ["a", "b"], [[str(i), float(i)] for i in range(60)])
    source = texts.latex(Document("t", "", [Section("s", [table])]))
    assert r"\begin{longtable}{lr}" in source
    assert r"\begin{table}" not in source


@BOTH
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(document: Document, tmp_path: Path) -> None:
    (tmp_path / "report.tex").write_text(texts.latex(document), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "report.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stdout[-2000:]
