"""What the stored cells are: the streams of batches that every number of a report is made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...bench import Interval, Result, Results
from .labels import attack_label, corruption_label, method_label, normalisation_label, objective_label


def describe_cells(recipes: Sequence[Results]) -> dict[str, tuple[str, ...]]:
    """Return the texts of ``CELL_COLUMNS`` for each cell of some recipes, by its key."""
    described: dict[str, tuple[str, ...]] = {}
    for results in recipes:
        attacks = results.values(lambda cell: cell.attack)
        for result in results.cells:
            cell = result.cell
            attack = "none"
            if cell.attack is not None:
                attack = f"{objective_label(cell.attack.objective)}, {attack_label(cell.attack, attacks)}"
            described[result.key] = (
                f"{cell.dataset}, {cell.setting.model}",
                corruption_label(cell.corruption),
                str(cell.seed),
                method_label(cell.method),
                normalisation_label(cell.method, cell.estimator),
                attack,
                str(len(result.batches)),
                *_numbers(results, result),
            )
    return described


def _numbers(results: Results, result: Result) -> tuple[str, str]:
    """Return the error of one cell without an attack, and what the attack does to it."""
    alone = replace(results, cells=[result])
    attacked = result.cell.attack is not None
    without = alone.measure("wrong_without") if attacked else alone.measure()
    under = alone.measure() if attacked else None
    return _percent(without), _percent(under)


def _percent(measure: Interval | None) -> str:
    return "–" if measure is None else f"{100 * measure.value:.1f}"
