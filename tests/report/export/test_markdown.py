"""Markdown, read by its structure and by another reader."""

from __future__ import annotations

import re

import pytest

from medbn.report import FORMATS
from medbn.report.document import Text
from tests.report.documents import BOTH, NASTY, demo, nasty

markdown = FORMATS.get("markdown").write


@pytest.mark.parametrize("make", BOTH)
def test_tables_have_as_many_cells_in_each_row(make) -> None:
    outside = re.sub(r"^(`{3,})\n.*?^\1$", "", markdown(make()), flags=re.DOTALL | re.MULTILINE)
    tables = re.findall(r"(?:^\|.*\n?)+", outside, re.MULTILINE)
    assert tables
    for table in tables:
        lines = table.strip().split("\n")
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
        assert len(widths) == 1, table
        assert re.fullmatch(r"\|( ---:? \|)+", lines[1])


def test_sections_of_images_alone_are_left_out() -> None:
    text = markdown(demo())
    assert "## Examples" not in text
    assert "Clean and poisoned" not in text
    assert "## Repeat it" in text


def test_texts_are_read_as_they_were_meant() -> None:
    reader = pytest.importorskip("markdown_it").MarkdownIt("commonmark").enable("table")
    page = reader.render(markdown(nasty()))
    assert "<script>" not in page
    assert f"<h1>{_html(NASTY)}</h1>" in page
    code = next(p for s in nasty().sections for p in s.parts if isinstance(p, Text) and p.code)
    assert f"<code>{_escape(code.text)}\n</code>" in page


def _html(text: str) -> str:
    """Return the HTML of a text with code between backticks."""
    return re.sub("`(.*?)`", r"<code>\1</code>", _escape(text))


def _escape(text: str) -> str:
    text = text.replace("\x00", "\ufffd").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace('"', "&quot;")
