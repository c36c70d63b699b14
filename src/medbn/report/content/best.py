"""Which cells of a table are the best: lower than the runner-up by more than chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...bench import Results
from ..document import Measure, Value
from ..tables import smaller_counts
from ..values import finite_number

Sample = tuple[Results, str]
"""The results behind a cell, and which of their errors it shows: a name of ``Results.by_batch``."""


def best_cells(
    rows: Sequence[Sequence[Value]], samples: Mapping[tuple[int, int], Sample], labels: int
) -> list[tuple[int, int]]:
    """Return the (row, column) of the lowest measures.

    They are compared down each column, among the rows that share every label but the last (the defences under one
    method). The lowest is the best if the interval of its difference to the second lowest excludes zero, on the same
    batches. Measures from fewer batches than others of their column do not compete.

    Args:
        rows: of the table.
        samples: by (row, column), what the measures are made from.
        labels: the number of columns at the left that are labels.
    """
    fewer = smaller_counts(rows)
    groups: dict[object, list[tuple[float, tuple[int, int]]]] = {}
    for r, c in samples:
        value = rows[r][c]
        number = finite_number(value) if isinstance(value, Measure) and (r, c) not in fewer else None
        if number is not None:
            groups.setdefault((c, *map(str, rows[r][: labels - 1])), []).append((number, (r, c)))
    best = []
    for group in groups.values():
        if len(group) > 1:
            (_, first), (_, second), *_ = sorted(group)
            best += [first] if _is_lower(samples[first], samples[second]) else []
    return sorted(best)


def _is_lower(first: Sample, second: Sample) -> bool:
    """Return whether the interval of the paired difference lies below zero; without an interval it does not."""
    difference = first[0].minus(second[0], first[1])
    return difference is not None and difference.high < 0
