"""Which cells of a table are the best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from medbn.bench import Result, Results, recipes
from medbn.report.content.best import best_cells
from medbn.report.document import Measure

CELL = next(iter(recipes.get("indiscriminate-instant").cells()))


def best(rows: Sequence[Sequence[object]], labels: int = 2) -> list[tuple[int, int]]:
    """The best cells of rows of labels and wrong predictions of 100 by batch; a list of n batches has the count n."""
    shown, samples = [], {}
    for r, row in enumerate(rows):
        shown.append([*row[:labels]])
        for c, wrong in enumerate(row[labels:], start=labels):
            batches = [{"images": 100, "benign": 100, "wrong": one} for one in wrong]
            results = Results({}, [], [Result("", replace(CELL, estimator=str(r)), batches, {})])
            shown[-1].append(
                Measure(sum(wrong) / len(wrong), count=len(wrong)) if wrong else Measure(math.nan, count=0)
            )
            samples[r, c] = results, "wrong"
    return best_cells(shown, samples, labels)


HARD = [10, 80, 20, 60, 40, 30]
"""Batches that differ far more than the rows do, so that only paired differences can tell the rows apart."""


def test_the_best_is_lower_than_the_runner_up_on_the_same_batches():
    lower = [one - 2 for one in HARD]
    assert best([["m", "a", HARD], ["m", "b", lower], ["m", "c", [one + 1 for one in HARD]]]) == [(1, 2)]
    noisy = [one + change for one, change in zip(HARD, (-9, 8, -7, 6, -5, 1), strict=True)]
    assert best([["m", "a", HARD], ["m", "b", noisy]]) == []
    assert best([["m", "a", HARD], ["m", "b", lower], ["m", "c", lower]]) == []
    assert best([["m", "a", HARD[:4]], ["m", "b", lower[:4]]]) == []  # too few batches for an interval
    assert best([["m", "a", HARD]]) == []


def test_the_best_is_chosen_in_each_column_among_the_rows_of_one_group():
    lower = [one - 2 for one in HARD]
    rows = [["m", "a", HARD, lower], ["m", "b", lower, HARD], ["n", "a", HARD, HARD], ["n", "b", HARD, lower]]
    assert best(rows) == [(0, 3), (1, 2), (3, 3)]


def test_measures_from_fewer_batches_or_of_none_do_not_compete():
    lower, lowest = [one - 2 for one in HARD], [one - 5 for one in HARD[:5]]
    assert best([["a", HARD], ["b", lower], ["c", lowest], ["d", []]], labels=1) == [(1, 1)]
    assert best([["a", HARD], ["c", lowest]], labels=1) == []
