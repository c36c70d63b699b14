"""LaTeX tables: their structure, and where LaTeX is installed, that it compiles them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from medbn.report import FORMATS, Document
from medbn.report.document import Section, Table
from tests.report.documents import BOTH, demo

latex = FORMATS.get("latex").write


def _without_comments(source: str) -> str:
    return re.sub(r"(?<!\\)%.*", "", source)


def test_there_are_tables_alone() -> None:
    source = _without_comments(latex(demo()))
    outside = re.sub(r"\\begin\{table\}.*?\\end\{table\}", "", source, flags=re.DOTALL)
    assert outside.strip() == ""
    assert source.count(r"\begin{table}") == source.count(r"\toprule") == source.count(r"\bottomrule") == 8


@pytest.mark.parametrize("make", BOTH)
def test_tables_are_balanced_and_escaped(make) -> None:
    source = _without_comments(latex(make()))
    bare = re.sub(r"\\[\\{}$&#%_]", "", source)
    depth = 0
    for letter in bare:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        assert depth >= 0
    assert depth == 0
    assert bare.count("$") % 2 == 0
    assert "#" not in bare
    environments = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", source):
        if kind == "begin":
            environments.append(name)
        else:
            assert environments.pop() == name
    assert environments == []
    without_maths = re.sub(r"\$[^$]*\$", "", bare)
    assert not re.search(r"[_^~|<>\"]", without_maths)


@pytest.mark.parametrize("make", BOTH)
def test_rows_have_as_many_cells_as_there_are_columns(make) -> None:
    tables = re.findall(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", latex(make()), re.DOTALL)
    assert tables
    for alignment, body in tables:
        rows = [line for line in body.split("\n") if line.endswith(r"\\")]
        assert {len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows} == {len(alignment)}


def test_intervals_are_subscripts_and_the_best_is_bold() -> None:
    source = latex(demo())
    assert r"image\_median & $\mathbf{28.9}_{[26.8,\,31.0]}$" in source
    assert "% medbn run demo --store demo.sqlite" in source


def test_long_tables_are_cut() -> None:
    table = Table("t", ["a", "b"], [[str(i), float(i)] for i in range(90)], notes=["a note"])
    source = latex(Document("t", "", [Section("s", [table])]))
    assert [part.count("\\\\\n") for part in source.split(r"\end{table}")] == [41, 41, 11, 0]
    assert r"\caption{t (3 of 3)}" in source
    assert source.count("a note") == 1


def test_many_tables_are_put_onto_pages_in_between():
    sections = [Section(f"s{i}", [Table("t", ["a", "b"], [["x", 1.0]])] * 5) for i in range(10)]
    pages = latex(Document("t", "", sections)).split(r"\clearpage")
    assert [page.count(r"\begin{table}") for page in pages] == [18, 18, 14]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
@pytest.mark.parametrize("make", BOTH)
def test_latex_compiles(make, tmp_path: Path) -> None:
    (tmp_path / "tables.tex").write_text(latex(make()), encoding="utf-8")
    (tmp_path / "paper.tex").write_text(
        "\\documentclass{article}\n\\usepackage{booktabs,graphicx}\n"
        "\\begin{document}\n\\input{tables}\n\\end{document}\n"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stdout[-2000:]
