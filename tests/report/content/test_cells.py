"""Every number knows the cells of the store that it is made from."""

from __future__ import annotations

import json
import re

from medbn.bench import Store, recipes, results
from medbn.report import FORMATS, build
from medbn.report.document import CELL_COLUMNS, Heatmap, Measure, Table
from tests.report.stores import fill, parts


def test_numbers_of_the_main_table_are_made_from_the_cells_of_their_row_and_column(tmp_path):
    fill(tmp_path / "x.db", recipes.get("demo").narrow(limit=2))
    with Store(tmp_path / "x.db") as store:
        document, stored = build(store), results.read(store)[0]
    table = parts(document, Table)[0]

    def keys(gradients):
        return {
            r.key
            for r in stored.cells
            if (r.cell.method, r.cell.estimator) == ("tent", "median") and r.cell.attack.gradient in gradients
        }

    (row,) = [row for row in table.rows if row[:2] == ["TENT", "MedBN"]]
    exact, other = keys({"exact"}), keys({"straight_through"})
    assert [set(value.cells) for value in row[2:]] == [exact | other, exact, other, exact | other]
    assert len(exact | other) == 4


def test_every_measure_names_cells_that_the_document_describes(tmp_path):
    for name in ("demo", "malicious-targeted", "no-attack"):
        fill(tmp_path / "x.db", recipes.get(name).narrow(limit=2))
    with Store(tmp_path / "x.db") as store:
        document = build(store)
        known = {r.key: r for one in results.read(store) for r in one.cells}
    assert document.cells.keys() == known.keys()
    assert all(len(about) == len(CELL_COLUMNS) for about in document.cells.values())
    measures = [
        value
        for part in (*parts(document, Table), *parts(document, Heatmap))
        for row in (part.rows if isinstance(part, Table) else part.values)
        for value in row
        if isinstance(value, Measure)
    ]
    assert len(measures) > 100
    assert all(value.cells and set(value.cells) <= known.keys() for value in measures if value.count)
    for key, about in document.cells.items():
        said = dict(zip(CELL_COLUMNS, about, strict=True))
        cell, batches = known[key].cell, known[key].batches
        assert said["corruption"].replace(" ", "_") == cell.corruption
        assert said["batches"] == str(len(batches))
        wrong = sum(b["wrong_without"] / b["benign"] if cell.attack else b["wrong"] / b["images"] for b in batches)
        assert said["without, %"] == f"{100 * wrong / len(batches):.1f}"


def test_the_page_lists_the_cells_once_and_numbers_lead_to_them(tmp_path):
    fill(tmp_path / "x.db", recipes.get("demo").narrow(limit=2))
    with Store(tmp_path / "x.db") as store:
        document = build(store)
    page = FORMATS.get("html").write(document)
    (stored,) = re.findall(r'<script type="application/json" id="cells">(.*?)</script>', page)
    listed = json.loads(stored)
    keys = list(document.cells)
    assert [row[0] for row in listed["rows"]] == [key[:12] for key in keys]
    assert [[listed["texts"][place] for place in row[1:]] for row in listed["rows"]] == [
        list(about) for about in document.cells.values()
    ]
    shown = re.findall(r'<button type="button" class="number" data-cells="([^"]+)">([^<]+)<', page)
    first = parts(document, Table)[0].rows[0][2]
    places = [place for span in shown[0][0].split() for place in range_of(span)]
    assert [keys[place] for place in places] == sorted(first.cells, key=keys.index)
    assert shown[0][1] == f"{first.value:.1f}"


def range_of(span):
    first, _, last = span.partition("-")
    return range(int(first), int(last or first) + 1)


def test_a_name_cannot_end_the_list_of_cells(tmp_path):
    fill(tmp_path / "x.db", recipes.get("demo").narrow(limit=1))
    with Store(tmp_path / "x.db") as store:
        document = build(store)
    name = "</script><script>alert(1)</script><!--"
    document.cells[next(iter(document.cells))] = (name,) * len(CELL_COLUMNS)
    page = FORMATS.get("html").write(document)
    (stored,) = re.findall(r'<script type="application/json" id="cells">(.*?)</script>', page)
    assert name in json.loads(stored)["texts"]
    assert page.count("<script") == 2
