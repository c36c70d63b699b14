"""A report apart from how it looks: sections of tables, figures and facts.

``content`` makes a document from a store; ``html`` and ``export`` write it. The names of classes and fields are part of
the JSON format.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

Colour = tuple[int, int, int]
"""Red, green and blue, from 0 to 255."""


@dataclass(frozen=True)
class Measure:
    """A number in per cent with its 95 % interval, from ``count`` targets or batches.

    Where there is no interval, the count is shown in its place. The number is NaN where nothing can be said, as of the
    worst of several attacks that were not run on the same batches.
    """

    value: float
    low: float | None = None
    high: float | None = None
    count: int | None = None
    note: str = ""
    """What the number counts, which a page shows when the pointer is on it."""
    cells: Sequence[str] = ()
    """The keys of the stored cells that it is made from, which a page shows when it is clicked."""


Value = Measure | float | int | str | None
"""The content of a table's cell. None is an empty cell: nothing was measured."""


@dataclass(frozen=True)
class Table:
    """Rows of values. ``best`` has the (row, column) of the cells to highlight."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]
    caption: str = ""
    notes: Sequence[str] = ()
    best: Collection[tuple[int, int]] = ()
    labels: int = 1
    """The number of columns at the left that are labels, not values."""
    groups: Sequence[str] = ()
    """For each row, the group of sections that it leads to; none for a table that leads nowhere."""


@dataclass(frozen=True)
class Heatmap:
    """A table with coloured cells, for instance method × corruption. ``alt`` describes it in words."""

    title: str
    alt: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[Measure | None]]
    low: float = 0.0
    high: float = 100.0
    caption: str = ""
    low_is_worse: bool = False
    """Whether low numbers get the strong colours, as of an IoU; without it high ones do, as of an error."""
    colours: Mapping[str, Colour] = field(default_factory=dict)
    """Colours to show beside the names of columns, for instance those of classes."""


@dataclass(frozen=True)
class Point:
    """A point of a scatter plot, with intervals on both axes.

    ``series`` decides its colour and mark. ``group`` tells points of one series apart, and is written beside them.
    """

    label: str
    series: str
    x: Measure
    y: Measure
    group: str = ""


@dataclass(frozen=True)
class Scatter:
    """Two measures against each other, for instance error without attack against error under attack.

    ``frontier`` draws a line through the points for which no other is better on both axes.
    """

    title: str
    alt: str
    x_label: str
    y_label: str
    points: Sequence[Point]
    frontier: bool = True
    caption: str = ""
    better: tuple[str, str] = ("low", "low")
    """Which numbers are good on each axis, "low" or "high"."""


@dataclass(frozen=True)
class Curves:
    """Measures against a number, for instance the error against the number of malicious images."""

    title: str
    alt: str
    x_label: str
    y_label: str
    series: Mapping[str, Sequence[tuple[float, Measure]]]
    reference: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    """Published numbers by the same names, drawn as dashed lines without intervals."""
    caption: str = ""


@dataclass(frozen=True)
class Timeline:
    """Numbers along a stream, one series below the other, each on a scale of its own.

    ``spans`` are shaded stretches with a label, ``events`` marked places: of one series by its name, of all for "".
    """

    title: str
    alt: str
    x_label: str
    series: Mapping[str, Sequence[tuple[float, float]]]
    spans: Sequence[tuple[float, float, str]] = ()
    events: Sequence[tuple[float, str, str]] = ()
    caption: str = ""


@dataclass(frozen=True)
class Picture:
    """A small PNG image, shown enlarged without smoothing."""

    png: bytes
    alt: str
    caption: str = ""
    marked: tuple[float, float] | None = None
    """A place to mark with a ring, for instance a targeted pixel: shares of the width and of the height."""


@dataclass(frozen=True)
class Gallery:
    """Rows of images, each row with a label."""

    title: str
    rows: Sequence[tuple[str, Sequence[Picture]]]
    caption: str = ""
    large: bool = False
    """Whether the images are too rich in detail to be shown small, as streets are."""
    legend: Mapping[str, Colour] = field(default_factory=dict)
    """The classes of label maps with their colours."""


@dataclass(frozen=True)
class Facts:
    """Names and values: what was run, where, with which versions."""

    title: str
    items: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Text:
    """Paragraphs, or with ``code`` something to paste into a terminal."""

    text: str
    code: bool = False


Part = Table | Heatmap | Scatter | Curves | Timeline | Gallery | Facts | Text


@dataclass(frozen=True)
class Section:
    """A heading and the parts under it."""

    title: str
    parts: Sequence[Part]
    lead: str = ""
    """One or two sentences that say what the section shows."""
    group: str = ""
    """The recipe that it belongs to, in a report on several: the contents then list recipes."""
    folded: bool = False
    """Whether a page shows the heading alone until it is opened."""


@dataclass(frozen=True)
class Document:
    """A whole report."""

    title: str
    lead: str
    sections: Sequence[Section]
    series: Mapping[str, str] = field(default_factory=dict)
    """The estimators by label, in order, each with what it is."""
    estimators: Mapping[str, str] = field(default_factory=dict)
    """The registered names of estimators by label, which decide their colours and marks."""
    cells: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What the stored cells are, by their keys: a text for each of ``CELL_COLUMNS``."""


CELL_COLUMNS = (
    *("data", "corruption", "seed", "method", "normalisation", "attack", "batches"),
    *("without, %", "attacked, %"),
)
"""What is said of a stored cell."""
