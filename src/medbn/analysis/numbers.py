"""The numbers of a figure: plain values, which a store keeps and files for other programs contain."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

Row = dict[str, Any]
"""One row of the table of a figure: texts and numbers by the names of their columns."""

DIGITS = 6
"""Significant digits of the numbers that are kept."""


@dataclass(frozen=True)
class Numbers:
    """The numbers of one figure, and what they were measured on.

    Args:
        figure: the name of the figure.
        settings: the data, the model and the attack, for the caption.
        rows: the table of the figure, all with the same columns; what its CSV file contains.
        details: what only the drawing needs, such as the points of a scatter plot.
        command: the command that measured them.
        machine: the device and the versions on which they were measured.
        seconds: how long that took, without attacks that were stored before.
    """

    figure: str
    settings: dict[str, Any]
    rows: list[Row]
    details: dict[str, Any] = field(default_factory=dict)
    command: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        columns = [list(row) for row in self.rows]
        if any(names != columns[0] for names in columns):
            raise ValueError(f"all rows of the figure {self.figure!r} need the same columns in the same order.")
        for name in ("settings", "rows", "details"):
            object.__setattr__(self, name, tidy(getattr(self, name)))

    @property
    def columns(self) -> list[str]:
        """The names of the columns of the table."""
        return list(self.rows[0]) if self.rows else []

    def select(self, **values: Any) -> list[Row]:
        """Return the rows that have these values.

        >>> Numbers("shift", {}, [{"layer": "bn1", "centre": 2.0}, {"layer": "bn2", "centre": 3.0}]).select(layer="bn2")
        [{'layer': 'bn2', 'centre': 3.0}]
        """
        return [row for row in self.rows if all(row[name] == tidy(value) for name, value in values.items())]

    def distinct(self, column: str) -> list[Any]:
        """Return the values of a column, each once, in the order in which they first occur."""
        return list(dict.fromkeys(row[column] for row in self.rows))

    def to_json(self) -> str:
        """Return everything as JSON, with one line per row."""
        values = asdict(self)
        rows = ",\n".join(json.dumps(row, allow_nan=False, ensure_ascii=False) for row in values.pop("rows"))
        details = json.dumps(values.pop("details"), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        head = json.dumps(values, indent=1, allow_nan=False, ensure_ascii=False).removesuffix("\n}")
        return f'{head},\n"rows": [\n{rows}\n],\n"details": {details}\n}}\n'

    @classmethod
    def from_json(cls, text: str) -> Numbers:
        """Return the numbers that ``to_json`` wrote."""
        values = json.loads(text)
        names = set(cls.__dataclass_fields__)
        if not isinstance(values, dict) or not {"figure", "settings", "rows"} <= set(values) <= names:
            raise ValueError("this is no JSON file of a figure's numbers.")
        return cls(**values)

    def to_csv(self) -> str:
        """Return the table as CSV."""
        file = io.StringIO()
        writer = csv.DictWriter(file, self.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return file.getvalue()


def tidy(value: Any) -> Any:
    """Return plain values with rounded numbers, lists for tuples, and None for what is not finite.

    >>> tidy({"a": (1 / 3, float("nan"))})
    {'a': [0.333333, None]}
    """
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): tidy(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [tidy(one) for one in value]
    return value
