"""Which cells of a table are the best: better than the runner-up by more than chance."""

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
    """Return the (row, column) of the best measures: the lowest, or the highest mean IoU.

    They are compared down each column, among the rows that share every label but the last (the defences under one
    method). The first is the best if the interval of its difference to the second excludes zero, on the same
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
            results, which = samples[r, c]
            cost = -number if results.higher_is_better(which) else number
            groups.setdefault((c, *map(str, rows[r][: labels - 1])), []).append((cost, (r, c)))
    best = []
    for group in groups.values():
        if len(group) > 1:
            (_, first), (_, second), *_ = sorted(group)
            best += [first] if _is_better(samples[first], samples[second]) else []
    return sorted(best)


def _is_better(first: Sample, second: Sample) -> bool:
    """Return whether the interval of the paired difference is on the good side of zero; False if there is none."""
    results, which = first
    difference = results.minus(second[0], which)
    if difference is None:
        return False
    return difference.low > 0 if results.higher_is_better(which) else difference.high < 0
