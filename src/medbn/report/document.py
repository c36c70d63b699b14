"""What a report says, apart from how it looks: sections of tables, pictures and facts.

``build`` makes a document from a store; ``page`` and ``texts`` show one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Measure:
    """A number in per cent with its 95 % interval, from ``count`` targets or images."""

    value: float
    low: float | None = None
    high: float | None = None
    count: int | None = None
    note: str = ""
    """Said where the pointer rests: what the number counts."""


Value = Measure | float | int | str | None
"""What stands in a table. None is an empty cell: nothing was measured."""


@dataclass(frozen=True)
class Table:
    """Rows of values. ``best`` colours numbers: "low" where low ones are good, "high" where high ones are, or None."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]
    caption: str = ""
    notes: Sequence[str] = ()
    best: str | None = None
    labels: int = 1
    """How many of the first columns are labels, not values."""
    across: bool = False
    """Whether ``best`` compares along each row; else down each column, among rows equal in all labels but the last."""


@dataclass(frozen=True)
class Heatmap:
    """A table as a picture, for instance method × corruption. ``title`` and ``alt`` say what it shows."""

    title: str
    alt: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[Measure | None]]
    low: float = 0.0
    high: float = 100.0
    caption: str = ""


@dataclass(frozen=True)
class Point:
    """One point of a scatter plot, with intervals on both axes; ``series`` chooses its colour, ``shape`` its mark."""

    label: str
    series: str
    x: Measure
    y: Measure
    shape: str = ""


@dataclass(frozen=True)
class Scatter:
    """Two measures against each other, for instance error without attack against error under attack.

    ``frontier`` draws the line of the points that no other beats on both axes (low is good on both).
    """

    title: str
    alt: str
    x_label: str
    y_label: str
    points: Sequence[Point]
    frontier: bool = True
    caption: str = ""


@dataclass(frozen=True)
class Curves:
    """Measures along a number, for instance the error against the number of malicious images."""

    title: str
    alt: str
    x_label: str
    y_label: str
    series: Mapping[str, Sequence[tuple[float, Measure]]]
    reference: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    """Published numbers under the same names, drawn as dashed lines without intervals."""
    caption: str = ""


@dataclass(frozen=True)
class Picture:
    """A small image, PNG, shown enlarged without smoothing."""

    png: bytes
    alt: str
    caption: str = ""


@dataclass(frozen=True)
class Gallery:
    """Rows of small images, each row with a label."""

    title: str
    rows: Sequence[tuple[str, Sequence[Picture]]]
    caption: str = ""


@dataclass(frozen=True)
class Facts:
    """Names and values: what was run, where, with which versions."""

    title: str
    items: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Text:
    """A paragraph, or where ``code`` is set, something to paste into a terminal."""

    text: str
    code: bool = False


Part = Table | Heatmap | Scatter | Curves | Gallery | Facts | Text


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    title: str
    parts: Sequence[Part]
    lead: str = ""
    """One or two sentences that say what to see here."""
    group: str = ""
    """What it is part of, where a report has several parts: its contents then name these."""


@dataclass(frozen=True)
class Document:
    """A whole report."""

    title: str
    lead: str
    sections: Sequence[Section]
    series: Mapping[str, str] = field(default_factory=dict)
    """The names of the defences in the order of their colours, with what each is: legend and explanation at once."""
