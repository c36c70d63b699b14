"""The page: well formed, complete, self-contained, and safe for any text in a document."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from medbn.report import FORMATS, Document
from medbn.report.document import Facts, Measure, Section, Table, Text
from tests.report.documents import NASTY, demo, empty, nasty
from tests.report.html.reader import Reader

pytest.importorskip("jinja2")
html = FORMATS.get("html").write


@pytest.fixture(params=[demo, nasty, empty], ids=["demo", "nasty", "empty"])
def page(request: pytest.FixtureRequest) -> str:
    return html(request.param())


def test_every_element_is_closed_and_every_id_is_unique(page: str) -> None:
    reader = Reader(page)
    assert reader.open == []
    names = [attributes["id"] for _, attributes in reader.elements if "id" in attributes]
    assert len(names) == len(set(names))
    links = [a["href"] for tag, a in reader.elements if tag == "a"]
    assert all(link and link[1:] in names for link in links)


def test_drawings_are_xml_with_a_description(page: str) -> None:
    for drawing in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        root = ElementTree.fromstring(drawing)
        if root.get("aria-hidden") != "true":
            assert root.get("role") == "img"
            assert root.find("desc") is not None
        for element in root.iter():
            assert not re.search("nan|inf", (element.get("d") or "") + (element.get("transform") or ""))


def test_nothing_is_loaded_from_outside_the_file(page: str) -> None:
    for _, attributes in Reader(page).elements:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:"))
    assert "url(" not in page
    assert "@import" not in page
    assert "http" not in re.sub(r"http-equiv", "", page)


def test_the_page_is_small() -> None:
    assert len(html(demo()).encode()) < 300_000


def test_texts_cannot_add_markup() -> None:
    page = html(nasty())
    reader = Reader(page)
    assert len(reader.texts["script"]) == 1
    assert "<script>alert" not in page
    assert "\x00" not in page
    # The text is shown as text: the heading is the title of the document.
    assert reader.texts["h1"] == [NASTY.replace("\x00", "\ufffd").replace("`", "")]
    assert not any(name.startswith("on") for _, attributes in reader.elements for name in attributes)


@pytest.mark.parametrize("text", ['<img src=x onerror="alert(1)">', '"><b id="x">', "'onclick='alert(1)", "</script>"])
def test_names_of_users_cannot_add_markup(text: str) -> None:
    assert _structure(text) == _structure("a")


def _structure(name: str) -> list[tuple[str, list[str]]]:
    """Return the elements and attributes of a page with a name in every place that shows one."""
    table = Table(name, ["method", name], [[name, Measure(1.0, note=name)], ["b", name]], name, [name])
    parts = [table, Facts(name, [(name, name)]), Text(name), Text(f"medbn run {name}", code=True)]
    document = Document(name, name, [Section(name, parts, name, name)], {name: name})
    return [(tag, list(attributes)) for tag, attributes in Reader(html(document)).elements]


def test_headings_make_an_outline() -> None:
    reader = Reader(html(demo()))
    levels = [int(tag[1]) for tag, _ in reader.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert [text.strip() for text in reader.texts["h2"]] == [section.title for section in demo().sections]
