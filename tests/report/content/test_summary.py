"""A report on several experiments begins with one row for each, and folds its details away."""

from __future__ import annotations

import re

import pytest

from medbn.bench import Store, recipes
from medbn.bench.results import read
from medbn.report import FORMATS, build
from medbn.report.document import Gallery, Measure, Table
from tests.report.html.reader import Reader
from tests.report.stores import ERRORS, fill, parts

MISSING = ("median", "smooth")
NAMES = ("indiscriminate-instant", "knowledge", "no-attack")


@pytest.fixture
def document(tmp_path):
    for name in NAMES:
        fill(tmp_path / "x.db", recipes.get(name).narrow(data=["cifar10-c"], limit=2))
    with Store(tmp_path / "x.db") as store:
        return build(store)


def test_each_experiment_has_a_row_with_what_the_worst_attack_does(document):
    table = document.sections[0].parts[0]
    assert (document.sections[0].title, document.sections[0].folded) == ("Summary", False)
    assert [row[0] for row in table.rows] == list(table.groups)
    assert list(dict.fromkeys(table.groups)) == list(NAMES)
    (row,) = [row for row in table.rows if row[0] == "indiscriminate-instant"]
    by_name = dict(zip(table.columns, row, strict=True))
    for column, name in (("BatchNorm", "mean"), ("MedBN", "median"), ("image_median", "image_median")):
        measure = by_name[column]
        assert isinstance(measure, Measure)
        # Two batches of 160 benign images; the second has one more wrong prediction.
        assert measure.value == pytest.approx(ERRORS[name] + 100 * 0.5 / 160)


def test_a_sweep_has_a_number_for_all_of_its_sizes_together(tmp_path):
    for name in ("malicious-targeted", "indiscriminate-instant"):
        fill(tmp_path / "x.db", recipes.get(name).narrow(data=["cifar10-c"], limit=1))
    with Store(tmp_path / "x.db") as store:
        table = build(store).sections[0].parts[0]
        results = {one.recipe["name"]: one for one in read(store)}["malicious-targeted"]
    (row,) = [row for row in table.rows if row[0] == "malicious-targeted"]
    measure = row[table.columns.index("MedBN")]
    batches = results.select(lambda cell: cell.estimator == "median").batches
    assert len({cell.cell.setting.malicious for cell in results.cells}) > 1
    assert (measure.count, measure.value) == (len(batches), 100 * sum(batch["hit"] for batch in batches) / len(batches))


def test_an_estimator_that_not_all_attacks_were_run_on_hides_no_other(tmp_path):
    for name in ("worst-case", "no-attack"):
        fill(tmp_path / "x.db", recipes.get(name).narrow(data=["cifar10-c"], limit=1))
    with Store(tmp_path / "x.db") as store:
        for stored in store.cells():
            if stored.cell["attack"] and (stored.cell["estimator"], stored.cell["attack"]["gradient"]) == MISSING:
                store.connection.execute("DELETE FROM batches WHERE key = ?", (stored.key,))
        store.connection.commit()
    with Store(tmp_path / "x.db") as store:
        table = build(store).sections[0].parts[0]
    for row in (row for row in table.rows if row[0] == "worst-case"):
        by_name = dict(zip(table.columns, row, strict=True))
        assert by_name["MedBN"] is None
        assert isinstance(by_name["BatchNorm"], Measure)
        assert isinstance(by_name["image_median"], Measure)


def test_rows_lead_to_the_sections_of_their_experiments(document):
    page = FORMATS.get("html").write(document)
    links = re.findall(r'<th scope="row"[^>]*><a href="#([^"]+)">(?:<wbr>|[^<])*', page)
    ids = {attributes["id"] for _, attributes in Reader(page).elements if "id" in attributes}
    assert set(links) == {f"{name}-results" for name in NAMES} <= ids


def test_results_are_open_and_details_are_folded(document, tmp_path):
    for section in document.sections[1:]:
        assert section.folded == (not section.title.endswith(": Results"))
    fill(tmp_path / "one.db", recipes.get("demo").narrow(limit=2))
    with Store(tmp_path / "one.db") as store:
        one = build(store)
    folded = {section.title: section.folded for section in one.sections}
    assert not folded["Results"]
    assert folded["What was run"]
    page = FORMATS.get("html").write(one)
    assert page.count('<details class="fold">') == sum(folded.values())


def test_a_page_that_is_too_large_leaves_pictures_out_and_then_cells_and_says_so(tmp_path, monkeypatch):
    from medbn.report.html import page

    fill(tmp_path / "x.db", recipes.get("demo").narrow(limit=2))
    with Store(tmp_path / "x.db") as store:
        document = build(store)
    assert parts(document, Gallery)
    write = FORMATS.get("html").write
    whole = write(document)
    monkeypatch.setattr(page, "LIMIT", len(whole.encode()) - 1)
    smaller = write(document)
    assert "data:image/png" in whole
    assert "data:image/png" not in smaller
    assert 'id="cells"' in smaller
    monkeypatch.setattr(page, "LIMIT", 1)
    least = write(document)
    assert 'id="cells"' not in least
    assert "too large" not in whole
    assert smaller.count("too large") == 1
    assert least.count("too large") == 2
    assert {row[0] for row in parts(document, Table)[0].rows} <= set(re.findall(r"TeBN|TENT", least))
