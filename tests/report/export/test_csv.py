"""CSV, read back by Python's own reader."""

from __future__ import annotations

import csv
import io

import pytest

from medbn.report import FORMATS, Document
from medbn.report.document import Measure, Section, Table
from tests.report.documents import BOTH, demo, measures


def _rows(document: Document) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(FORMATS.get("csv").write(document), newline=""), strict=True))


def _key(*numbers: float | int | None) -> tuple[str, ...]:
    return tuple("" if n is None else repr(float(n)) for n in numbers)


@pytest.mark.parametrize("make", BOTH)
def test_every_measure_is_there_exactly(make) -> None:
    document = make()
    written = []
    for row in _rows(document):
        try:
            numbers = [float(row[name]) if row[name] else None for name in ("value", "low", "high", "count")]
        except ValueError:
            continue  # a text
        written.append(_key(*numbers))
    # The plain numbers of tables are there too; every measure must be among them, as often as it occurs.
    for measure in measures(document):
        written.remove(_key(measure.value, measure.low, measure.high, measure.count))


def test_each_number_has_its_labels() -> None:
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


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1"])
def test_text_that_a_spreadsheet_would_run_is_quoted(text) -> None:
    table = Table(text, ["row", text], [[text, Measure(-1.5, -2.0, -1.0, note=text)], ["plain - text", text]])
    number, other = _rows(Document("", "", [Section(text, [table])]))
    quoted = f"'{text}"
    assert [number[name] for name in ("section", "part", "label_1", "column", "note")] == [quoted] * 5
    assert [number[name] for name in ("value", "low", "high")] == ["-1.5", "-2.0", "-1.0"]
    assert (other["label_1"], other["value"]) == ("plain - text", quoted)


def test_a_carriage_return_stays_within_its_cell() -> None:
    table = Table("t", ["row", "x"], [["a\r=1", 1.0], ["b", 2.0]])
    assert [row["label_1"] for row in _rows(Document("", "", [Section("s", [table])]))] == ["a\r=1", "b"]
