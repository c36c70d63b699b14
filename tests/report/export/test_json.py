"""JSON, read back by Python's own reader."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator

import pytest

from medbn.report import FORMATS
from medbn.report.document import Gallery
from tests.report.documents import BOTH, demo, measures


@pytest.mark.parametrize("make", BOTH)
def test_json_is_lossless(make) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    document = make()
    data = json.loads(FORMATS.get("json").write(document), parse_constant=refuse)
    assert data["title"] == document.title
    assert data["series"] == dict(document.series)
    assert [section["title"] for section in data["sections"]] == [section.title for section in document.sections]

    def written(value: object) -> Iterator[dict[str, object]]:
        if isinstance(value, dict):
            if value.get("kind") == "measure":
                yield value
            for item in value.values():
                yield from written(item)
        elif isinstance(value, list):
            for item in value:
                yield from written(item)

    def finite(number: float | None) -> float | None:
        return number if number is not None and math.isfinite(number) else None

    expected = [(finite(m.value), finite(m.low), finite(m.high), m.count, m.note) for m in measures(document)]
    measured = written(data["sections"])
    assert [(m["value"], m["low"], m["high"], m["count"], m["note"]) for m in measured] == expected


def test_json_has_the_images() -> None:
    gallery = next(p for s in demo().sections for p in s.parts if isinstance(p, Gallery))
    data = json.loads(FORMATS.get("json").write(demo()))
    part = next(p for s in data["sections"] for p in s["parts"] if p["kind"] == "gallery")
    assert base64.b64decode(part["rows"][0][1][0]["png"]) == gallery.rows[0][1][0].png
