"""The numbers that the MedBN paper prints, for comparison.

``published.json`` has every number as printed, misprints included; a table's ``notes`` say what is wrong. Averages are
stored as printed, and are also recomputed from the corruptions.

A row's ``objective`` is ``"none"`` where nothing is attacked. Its ``settings`` are ``model``, ``batch_size``,
``malicious`` (images per batch; ``malicious_share`` where the paper gives only that) and, under attack, ``attack`` (a
name of ``medbn.attacks``), ``knowledge`` and, from appendix C, ``epsilon``, ``steps``, ``step_size`` and ``start`` (the
first perturbation).

>>> get("targeted-instant").lookup(dataset="cifar10-c", method="tent", estimator="median")
18.36
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import resources
from types import MappingProxyType
from typing import Any, NamedTuple

from .._errors import unknown_name

__all__ = ["CORRUPTIONS", "TOLERANCE", "Disagreement", "Row", "Table", "get", "tables"]

CORRUPTIONS = (
    *("gaussian_noise", "shot_noise", "impulse_noise"),
    *("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness"),
    *("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)
"""In the order of the paper's columns."""

TOLERANCE = 0.05 + 0.05
"""How far a printed average may be from the recomputed one: half a tenth for the rounding of each."""

_NAMES = ("dataset", "estimator", "method", "objective", "metric", "corruption")
_SETTINGS = (
    *("model", "batch_size", "malicious", "malicious_share"),
    *("attack", "knowledge", "epsilon", "steps", "step_size", "start"),
)

Key = str | int | float


@dataclass(frozen=True)
class Row:
    """One printed number, and what it was measured on."""

    value: float
    dataset: str
    estimator: str
    method: str
    objective: str
    metric: str
    corruption: str | None
    settings: Mapping[str, Key]

    @cached_property
    def keys(self) -> dict[str, Key]:
        """All names and settings in one mapping."""
        named = {name: getattr(self, name) for name in _NAMES}
        return {key: value for key, value in named.items() if value is not None} | dict(self.settings)

    def matches(self, keys: Mapping[str, Key]) -> bool:
        """Return whether this row has all of ``keys``."""
        own = self.keys
        return all(name in own and own[name] == value for name, value in keys.items())


class Disagreement(NamedTuple):
    """A printed average that is not the mean of the printed corruptions."""

    keys: dict[str, Key]
    printed: float
    recomputed: float


@dataclass(frozen=True)
class Table:
    """One table of the paper. ``objective`` and ``metric`` are None where they differ from row to row.

    ``averages_of`` names the tables with one value per corruption of which this one prints averages.
    """

    id: str
    label: str
    where: str
    caption: str
    columns: str
    scenario: str
    objective: str | None
    metric: str | None
    averages_of: tuple[str, ...]
    notes: tuple[str, ...]
    rows: tuple[Row, ...]
    _averages: tuple[Row, ...]

    def lookup(self, **keys: Key) -> float | None:
        """Return the number printed for ``keys``, any names and settings that determine one; None if there is none.

        In a table with one objective, that objective is the default.

        >>> get("epsilon").lookup(estimator="mean", epsilon=8 / 255)
        58.0
        """
        for name in keys:
            if name not in _NAMES + _SETTINGS:
                raise unknown_name("key of a published number", name, _NAMES + _SETTINGS)
        if self.objective is not None:
            keys = {"objective": self.objective, **keys}
        rows = [row for row in self.rows if row.matches(keys)]
        if not rows:
            return None
        for row in rows[1:]:
            if row.keys != rows[0].keys:
                differ = sorted(name for name, value in row.keys.items() if rows[0].keys.get(name) != value)
                raise ValueError(f"{keys} matches {len(rows)} numbers of {self.id!r}; give also {', '.join(differ)}.")
        return rows[0].value

    def averages(self, recomputed: bool = True) -> tuple[Row, ...]:
        """Return the averages over corruptions that this table prints, recomputed from the corruptions or as printed.

        They are recomputed from this table or, if it prints averages alone, from the tables in ``averages_of``. An
        average whose corruptions are printed nowhere is left out.
        """
        return tuple(replace(row, value=mean) if recomputed else row for row, mean in self._pairs())

    def disagreements(self, tolerance: float = TOLERANCE) -> list[Disagreement]:
        """Return the printed averages that differ from the recomputed ones by more than ``tolerance``."""
        return [
            Disagreement(row.keys, row.value, mean) for row, mean in self._pairs() if abs(row.value - mean) > tolerance
        ]

    def _pairs(self) -> list[tuple[Row, float]]:
        """Return each printed average with the mean of its corruptions."""
        groups: dict[frozenset[tuple[str, Key]], list[float]] = {}
        for row in [row for name in self.averages_of for row in get(name).rows] or self.rows:
            if row.corruption is not None:
                group = frozenset(item for item in row.keys.items() if item[0] != "corruption")
                groups.setdefault(group, []).append(row.value)
        return [
            (row, sum(parts) / len(parts))
            for row in (self.rows if self.averages_of else self._averages)
            for group, parts in groups.items()
            if row.matches(dict(group))
        ]


@cache
def tables() -> dict[str, Table]:
    """Return all tables by id, in the paper's order."""
    text = resources.files(__package__).joinpath("published.json").read_text(encoding="utf-8")
    return {entry["id"]: _table(entry) for entry in json.loads(text)}


def get(id: str) -> Table:
    """Return the table of that id."""
    if id not in tables():
        raise unknown_name("published table", id, tables())
    return tables()[id]


def _table(entry: dict[str, Any]) -> Table:
    plain = {name: entry[name] for name in ("id", "label", "where", "caption", "columns", "scenario")}
    return Table(
        **plain,
        objective=entry["objective"],
        metric=entry["metric"],
        averages_of=tuple(entry["averages_of"]),
        notes=tuple(entry["notes"]),
        rows=tuple(_row(row, entry) for row in entry["rows"]),
        _averages=tuple(_row(row, entry) for row in entry["averages"]),
    )


def _row(row: dict[str, Any], entry: dict[str, Any]) -> Row:
    """Return a row with the settings of its table, of its dataset and, under attack, of the attack."""
    objective = row.get("objective", entry["objective"])
    attack = {} if objective == "none" else entry["attack"]
    return Row(
        value=row["value"],
        dataset=row["dataset"],
        estimator=row["estimator"],
        method=row["method"],
        objective=objective,
        metric=row.get("metric", entry["metric"]),
        corruption=row.get("corruption"),
        settings=MappingProxyType(
            {**entry["settings"], **entry["datasets"][row["dataset"]], **attack, **row.get("settings", {})}
        ),
    )
