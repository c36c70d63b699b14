"""Measures of a report: rates of results in per cent, with their intervals and what they count."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...bench import Interval, Results
from ..document import Measure, Value
from ..tables import smaller_counts


def as_percent(
    interval: Interval | None, count: int | None = None, note: str = "", cells: Sequence[str] = ()
) -> Measure | None:
    """Return an interval of a rate as a measure in per cent, with the keys of the cells that it is from.

    Where all batches have the same value the bootstrap has no width. That says nothing about other batches, so there is
    no interval then.
    """
    if interval is None:
        return None
    if math.isnan(interval.low) or interval.high - interval.low < 1e-9:
        return Measure(100 * interval.value, None, None, count, note, cells)
    return Measure(100 * interval.value, 100 * interval.low, 100 * interval.high, count, note, cells)


def keys_of(*several: Results) -> tuple[str, ...]:
    """Return the keys of the cells of some results, in order, each once."""
    return tuple(dict.fromkeys(key for results in several for result in results.cells for key in result.keys))


def measure_harm(results: Results) -> Measure | None:
    """Return what the attacks on some results do: their success if they are targeted, else the error under them."""
    targeted = any("hit" in batch for batch in results.batches)
    count = len(results.batches)
    return as_percent(results.measure(), count, _note(results, count, targeted), keys_of(results))


def measure_without(results: Results) -> Measure | None:
    """Return the error on the same batches without an attack."""
    # However many attacks were run on a batch, without an attack it counts once.
    count = len(results.batch_ids())
    return as_percent(results.measure("wrong_without"), count, _note(results, count, False), keys_of(results))


def _note(results: Results, count: int, targeted: bool) -> str:
    """Return what a measure counts, and how many targets an attacker had without doing anything."""
    already = [batch["already"] for batch in results.batches if "already" in batch]
    if targeted:
        return f"{count} targets" + (f"; {sum(already)} of them predicted so without attack" if sum(already) else "")
    note = f"{count} batches"
    if already and "hit" not in results.batches[0]:
        note += f"; {sum(already)} of {len(already)} targets predicted as an attacker would like, without attack"
    return note


def measure_worst(results: Results) -> Measure:
    """Return the harm of the worst attack on each batch, of ``Results.hardest``; NaN of no batches if it has none."""
    nothing = Measure(math.nan, count=0, note="not all of these attacks were run on the same batches")
    return measure_harm(results) or nothing


def difference(results: Results, base: Results, which: str) -> Measure | None:
    """Return how much higher ``which`` error is than in ``base``, on the batches that both have."""
    shared = results.by_batch(which).keys() & base.by_batch(which).keys()
    return as_percent(results.minus(base, which), len(shared), cells=keys_of(results, base))


def counts(rows: Sequence[Sequence[Value]]) -> set[int]:
    """Return the numbers of batches behind the measures in some rows."""
    return {value.count for row in rows for value in row if isinstance(value, Measure) and value.count}


def coverage_notes(rows: Sequence[Sequence[Value]]) -> list[str]:
    """Return a note for tables with cells from fewer batches than others of their column, else nothing."""
    if not smaller_counts(rows):
        return []
    sizes = counts(rows)
    return [
        f"Cells are from {min(sizes)} to {max(sizes)} batches. Those from fewer batches than others of their column"
        " show how many (n), and cannot be the best."
    ]
