"""The page: well formed, complete, self-contained, and safe whatever a document says."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from medbn.report import FORMATS
from medbn.report.document import Document, Measure, Point, Scatter, Section, Table
from medbn.report.html.page import render as html
from medbn.report.html.palette import STEPS, heat_css
from medbn.report.html.scatter import frontier
from tests.report.documents import NASTY, demo, measured, nasty

VOID = {"meta", "link", "img", "wbr", "br"}
DOCUMENTS = {"demo": demo, "nasty": nasty, "empty": lambda: Document("", "", [])}


class Reader(HTMLParser):
    """Reads a page as a browser would: what is open, which attributes there are, which text is in each element."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.texts.setdefault(tag, []).append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in set(self.open):
            self.texts[tag][-1] += data


@pytest.fixture(params=DOCUMENTS)
def page(request: pytest.FixtureRequest) -> str:
    return html(DOCUMENTS[request.param]())


def test_every_element_is_closed_and_every_name_is_given_once(page: str) -> None:
    reader = Reader(page)
    assert reader.open == []
    names = [attributes["id"] for _, attributes in reader.elements if "id" in attributes]
    assert len(names) == len(set(names))
    links = [a["href"] for tag, a in reader.elements if tag == "a"]
    assert all(link and link[1:] in names for link in links)


def test_pictures_are_xml_with_a_description(page: str) -> None:
    for picture in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        root = ElementTree.fromstring(picture)
        if root.get("aria-hidden") != "true":
            assert root.get("role") == "img"
            assert root.find("desc") is not None
        for element in root.iter():
            assert not re.search("nan|inf", (element.get("d") or "") + (element.get("transform") or ""))


def test_nothing_outside_the_file_is_asked_for(page: str) -> None:
    for _, attributes in Reader(page).elements:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:"))
    assert "url(" not in page
    assert "@import" not in page
    assert "http" not in re.sub(r"http-equiv", "", page)


def test_the_page_is_small() -> None:
    assert len(html(demo()).encode()) < 300_000


def test_documents_cannot_write_markup() -> None:
    page = html(nasty())
    reader = Reader(page)
    assert len(reader.texts["script"]) == 1
    assert "<script>alert" not in page
    assert "\x00" not in page
    # The text is still there, read as text: the heading says what the document's title says.
    assert reader.texts["h1"] == [NASTY.replace("\x00", "\ufffd").replace("`", "")]
    assert not any(name.startswith("on") for _, attributes in reader.elements for name in attributes)


def test_headings_make_an_outline() -> None:
    reader = Reader(html(demo()))
    levels = [int(tag[1]) for tag, _ in reader.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert [text.strip() for text in reader.texts["h2"]] == [section.title for section in demo().sections]


def test_tables_have_captions_and_scoped_headings_and_images_have_texts() -> None:
    reader = Reader(html(demo()))
    assert len(reader.texts["caption"]) == len(reader.texts["table"])
    assert all(a.get("scope") in ("row", "col") for tag, a in reader.elements if tag == "th")
    assert all(a.get("alt") for tag, a in reader.elements if tag == "img")


def _best(table: Table) -> list[str]:
    page = html(Document("t", "", [Section("s", []), Section("s", [table])]))
    return re.findall(r'class="value best"[^>]*><span class="number">([^<]*)', page)


def test_best_is_chosen_in_each_column_among_rows_of_one_group() -> None:
    rows = [
        ["a", "x", Measure(5.0), 1.0],
        ["a", "y", Measure(3.0), 2.0],
        ["b", "x", Measure(9.0)],
        ["b", "y", Measure(9.0)],
    ]
    columns = ["group", "row", "error", "seconds"]
    assert _best(Table("t", columns, rows, best="low", labels=2)) == ["3.0"]
    assert _best(Table("t", columns, rows, best="high", labels=2)) == ["5.0"]
    assert _best(Table("t", columns, rows, labels=2)) == []


def test_best_is_chosen_in_each_row_where_the_table_says_so() -> None:
    rows = [["a", Measure(5.0), Measure(3.0)], ["b", Measure(1.0), Measure(2.0)]]
    assert _best(Table("t", ["row", "x", "y"], rows, best="low", across=True)) == ["3.0", "1.0"]
    assert _best(Table("t", ["row", "x", "y"], [["a", Measure(float("nan")), Measure(3.0)]], best="low")) == []


def test_only_measures_of_as_many_batches_compete() -> None:
    rows = [
        ["a", Measure(5.0, count=15)],
        ["b", Measure(4.0, count=15)],
        ["c", Measure(1.0, count=8)],
        ["d", Measure(9.0)],
    ]
    assert _best(Table("t", ["row", "x"], rows, best="low")) == ["4.0"]
    assert _best(Table("t", ["row", "x"], rows[1:3], best="low")) == []
    other = [["m", "x", Measure(5.0, count=60)], ["n", "x", Measure(4.0, count=15)], ["n", "y", Measure(3.0, count=15)]]
    assert _best(Table("t", ["group", "row", "x"], other, best="low", labels=2)) == []


def test_names_of_defences_are_not_broken() -> None:
    page = html(demo())
    assert "image_<wbr>" not in page
    assert "image_median</th>" in page
    table = Table("t", ["some_name", "b"], [["x", 1.0]])
    assert "some_<wbr>name" in html(Document("t", "", [Section("s", [table])]))


def test_a_measure_shows_its_interval_and_says_what_it_counts() -> None:
    table = Table(
        "t", ["a", "b"], [["x", Measure(38.14, 36.04, 40.2, 50, 'of "ours"')], ["y", Measure(-1.0, -2.0, 0.5)]]
    )
    page = html(Document("t", "", [Section("s", [table])]))
    assert '<span class="number">38.1</span><span class="interval">36.0–40.2</span>' in page
    assert 'data-sort="38.14" title="of &#34;ours&#34;; 95 % interval 36.0–40.2; n = 50"' in page
    assert '<span class="number">−1.0</span><span class="interval">−2.0 to 0.5</span>' in page


def test_the_frontier_holds_what_nothing_beats() -> None:
    points = [(1.0, 9.0), (2.0, 5.0), (3.0, 6.0), (4.0, 1.0), (4.0, 0.5), (2.0, 5.0)]
    beaten = {p for p in points for q in points if q != p and q[0] <= p[0] and q[1] <= p[1]}
    assert frontier(points) == sorted(set(points) - beaten)


def test_labels_of_points_do_not_cover_each_other() -> None:
    crowd = [Point(f"point {i}", "s", measured(30 + i % 5), measured(40 + i // 5)) for i in range(40)]
    page = html(Document("t", "", [Section("s", [Scatter("t", "alt", "x", "y", crowd)])]))
    wide = re.search(r'<svg class="chart wide".*?</svg>', page, re.DOTALL)
    assert wide is not None
    spots = []
    for label in ElementTree.fromstring(wide.group()).iter("text"):
        if label.get("class") == "point":
            x, y, size = float(label.get("x", "")), float(label.get("y", "")), 6.7 * len(label.text or "")
            spots.append((x - {"start": 0, "middle": size / 2, "end": size}[label.get("text-anchor", "")], y, size))
    assert spots
    for i, (x, y, size) in enumerate(spots):
        for other_x, other_y, other in spots[:i]:
            assert x >= other_x + other - 0.2 or other_x >= x + size - 0.2 or abs(y - other_y) >= 14.8


def _contrast(first: str, second: str) -> float:
    def luminance(colour: str) -> float:
        digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
        shares = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted([luminance(first), luminance(second)])
    return (high + 0.05) / (low + 0.05)


def test_numbers_can_be_read_on_every_colour_of_the_heat_maps() -> None:
    colours = re.findall(r"background:(#\w+);color:(#\w+)", heat_css())
    assert len(colours) == 2 * (STEPS + 1)
    assert all(_contrast(ground, ink) >= 4.5 for ground, ink in colours)


def test_formats_are_named_and_give_text_for_any_document() -> None:
    assert sorted(FORMATS) == ["csv", "html", "json", "latex", "markdown"]
    for name in FORMATS:
        for make in DOCUMENTS.values():
            FORMATS.get(name).write(make()).encode("utf-8")
