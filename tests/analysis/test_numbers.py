"""Numbers of figures: what is written as JSON is read again, and CSV has the table."""

from __future__ import annotations

import csv
import io
import json

import pytest

from medbn.analysis import Numbers

NUMBERS = Numbers(
    "shift",
    {"epsilons": (1.0, 8 / 255)},
    [{"layer": "bn1", "centre": 1 / 3}, {"layer": 'a "quoted", one', "centre": float("nan")}],
    {"points": [[0.1, 2]]},
    "medbn figure shift",
    {"device": "a processor"},
    1.5,
)


def test_json_keeps_everything():
    assert Numbers.from_json(NUMBERS.to_json()) == NUMBERS


def test_json_is_strict():
    def refuse(constant):
        raise AssertionError(constant)

    values = json.loads(NUMBERS.to_json(), parse_constant=refuse)
    assert values["rows"][1]["centre"] is None


@pytest.mark.parametrize("text", ["[]", "{}", '{"figure": "a", "settings": {}, "rows": [], "more": 1}'])
def test_another_file_is_refused(text):
    with pytest.raises(ValueError, match="JSON"):
        Numbers.from_json(text)


def test_csv_has_one_line_per_row():
    rows = list(csv.DictReader(io.StringIO(NUMBERS.to_csv())))
    assert [row["layer"] for row in rows] == ["bn1", 'a "quoted", one']
    assert [row["centre"] for row in rows] == ["0.333333", ""]


def test_rows_are_found_by_the_values_that_were_given():
    numbers = Numbers("shift", {}, [{"epsilon": 8 / 255, "x": 1}, {"epsilon": 1.0, "x": 2}])
    assert numbers.select(epsilon=8 / 255) == [{"epsilon": pytest.approx(8 / 255, rel=1e-5), "x": 1}]


def test_rows_have_the_same_columns():
    with pytest.raises(ValueError, match="columns"):
        Numbers("shift", {}, [{"a": 1}, {"b": 1}])
