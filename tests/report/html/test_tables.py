"""Tables of the page: captions, labels, intervals."""

from __future__ import annotations

import re

import pytest

from medbn.report import FORMATS, Document
from medbn.report.document import Measure, Section, Table
from tests.report.documents import demo
from tests.report.html.reader import Reader

pytest.importorskip("jinja2")


def _page(table: Table) -> str:
    return FORMATS.get("html").write(Document("t", "", [Section("s", [table])]))


def test_tables_have_captions_and_scoped_headings_and_images_have_texts() -> None:
    reader = Reader(FORMATS.get("html").write(demo()))
    assert len(reader.texts["caption"]) == len(reader.texts["table"])
    assert all(a.get("scope") in ("row", "col") for tag, a in reader.elements if tag == "th")
    assert all(a.get("alt") for tag, a in reader.elements if tag == "img")


def test_the_best_measure_is_marked() -> None:
    table = Table("t", ["row", "x"], [["a", Measure(5.0)], ["b", Measure(3.0)]], best=[(1, 1)])
    assert re.findall(r'class="value best"[^>]*><span class="number">([^<]*)', _page(table)) == ["3.0"]


def test_names_of_estimators_do_not_break_but_others_may() -> None:
    page = FORMATS.get("html").write(demo())
    assert "image_<wbr>" not in page
    assert "image_median</th>" in page
    assert "some_<wbr>name" in _page(Table("t", ["some_name", "b"], [["x", 1.0]]))


def test_a_measure_shows_its_interval_and_what_it_counts() -> None:
    rows = [["x", Measure(38.14, 36.04, 40.2, 50, 'of "ours"')], ["y", Measure(-1.0, -2.0, 0.5)]]
    page = _page(Table("t", ["a", "b"], rows))
    assert '<span class="number">38.1</span><span class="interval">36.0–40.2</span>' in page
    assert 'data-sort="38.14" title="of &#34;ours&#34;; 95 % interval 36.0–40.2; n = 50"' in page
    assert '<span class="number">−1.0</span><span class="interval">−2.0 to 0.5</span>' in page


def test_a_measure_without_an_interval_shows_its_count_and_one_without_a_number_a_dash() -> None:
    rows = [["x", Measure(18.8, count=2)], ["y", Measure(float("nan"), count=0, note="not run")]]
    page = _page(Table("t", ["a", "b"], rows))
    assert '<span class="number">18.8</span><span class="count">n = 2</span>' in page
    assert re.search(
        r'title="not run; n = 0"><span class="nothing"[^>]*>–</span><span class="count">n = 0</span>', page
    )
    document = Document("t", "", [Section("s", [Table("t", ["a", "b"], rows)])])
    assert "| x | 18.8 (n = 2) |\n| y | – (n = 0) |" in FORMATS.get("markdown").write(document)
    assert r"-- (n = 0) \\" in FORMATS.get("latex").write(document)
