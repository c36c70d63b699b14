"""The colour and the mark of each estimator: the same in every report and figure.

The colours differ from each other in normal sight, for red-green and for blue-yellow deficient sight; those of
BatchNorm, MedBN and ``image_median`` also in grey print. Methods and attacks differ otherwise: by position,
name or line.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

COLOURS = (
    ("#9c3208", "#e8622c"),
    ("#1d66d6", "#45aef2"),
    ("#17a36f", "#45e8ac"),
    ("#d2559f", "#c46bac"),
    ("#a88600", "#f2de4a"),
    ("#3c4654", "#c4d4e6"),
)
"""Pairs of a colour on a light and on a dark ground."""

MARKS = ("o", "s", "^", "D", "v", "P", "X", "p", "h", "*")
"""Marks by their names in matplotlib: circle, square, triangle up, diamond, triangle down, plus, cross, pentagon,
hexagon, star."""

_PLACES = {"mean": 0, "median": 1, "image_median": 2, "mad": 3, "mad_scaled": 4}
"""The place of an estimator in ``COLOURS`` and in ``MARKS``."""

_OTHERS = len(COLOURS) - 1
"""The place of the colour that estimators of users share. They differ in their marks."""


@dataclass(frozen=True)
class Style:
    """How an estimator is drawn.

    Args:
        colour: its place in ``COLOURS``.
        mark: one of ``MARKS``.
        filled: whether the mark is filled. Estimators with a prior have hollow marks.
    """

    colour: int
    mark: str
    filled: bool = True

    @property
    def light(self) -> str:
        """The colour on a light ground."""
        return COLOURS[self.colour][0]

    @property
    def dark(self) -> str:
        """The colour on a dark ground."""
        return COLOURS[self.colour][1]


def estimator_style(name: str) -> Style:
    """Return the style of one estimator.

    >>> estimator_style("median")
    Style(colour=1, mark='s', filled=True)
    """
    return estimator_styles([name])[name]


def estimator_styles(names: Iterable[str]) -> dict[str, Style]:
    """Return the styles of estimators that are shown together, by name.

    ``NAME@PRIOR`` has the colour of NAME and a hollow mark that depends on the prior. Estimators of users get the marks
    that are left, in the order in which they are given.
    """
    names = list(names)
    others = [base for base in dict.fromkeys(name.partition("@")[0] for name in names) if base not in _PLACES]
    free = MARKS[len(_PLACES) :]
    styles = {}
    for name in names:
        base, _, prior = name.partition("@")
        colour = _PLACES.get(base, _OTHERS)
        mark = MARKS[colour] if base in _PLACES else free[others.index(base) % len(free)]
        styles[name] = Style(colour, _mark_of_prior(prior) if prior else mark, filled=not prior)
    return styles


def _mark_of_prior(prior: str) -> str:
    """Return a mark for a prior, different for priors that are a tenth apart."""
    try:
        return MARKS[round(10 * float(prior)) % len(MARKS)]
    except (ValueError, OverflowError):  # a store of strangers may have any name
        return MARKS[0]
