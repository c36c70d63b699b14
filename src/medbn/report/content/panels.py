"""Panels: the results of a recipe that are shown in one table, and what the columns of that table are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ...bench import SWEEPS, UNCORRUPTED, Attack, Cell, Result, Results, effective_attack
from .labels import attack_rank, objective_class, objective_label, order_estimators


@dataclass(frozen=True)
class Panel:
    """Results of one dataset, model, severity, batch size and objective; a sweep over batch sizes is one panel."""

    title: str
    results: Results

    @property
    def attack(self) -> Attack | None:
        """The attack of the first cell; all have the same objective."""
        return self.results.cells[0].cell.attack

    @property
    def targeted(self) -> bool:
        """Whether the attacks are targeted."""
        return self.attack is not None and objective_class(self.attack.objective).targeted

    @property
    def quality(self) -> str:
        """What is measured of predictions apart from any target: the error, or the mean IoU of segmentation."""
        return "mean IoU" if self.results.dense else "error"

    @property
    def harm(self) -> str:
        """What the numbers measure: the quality of predictions, or what the objective of the attacks calls its harm."""
        if self.attack is None:
            return self.quality
        if self.results.dense and not self.targeted:
            return f"{self.quality} under attack"
        return objective_class(self.attack.objective).harm_label

    @property
    def high_is_better(self) -> bool:
        """Whether a high ``harm`` is good, as of a mean IoU."""
        return self.results.dense and not self.targeted

    @property
    def sweep(self) -> str | None:
        """What the recipe's axis is called where it is a number of images, else None."""
        return SWEEPS.get(self.results.recipe["axis"])

    @cached_property
    def columns(self) -> list[Any]:
        """The columns of the tables: the numbers of a sweep, or else attacks (None for runs without attack)."""
        columns = self.results.values(self.column_of)
        if self.sweep:
            return sorted(columns)
        return sorted(columns, key=lambda attack: attack_rank(attack, columns))

    def column_of(self, cell: Cell) -> Any:
        """Return which of the columns a cell belongs to."""
        return getattr(cell.setting, self.results.recipe["axis"]) if self.sweep else cell.attack

    @cached_property
    def estimators(self) -> list[str]:
        """The estimators, in the order of a report."""
        return order_estimators(self.results.values(lambda cell: cell.estimator))

    @cached_property
    def groups(self) -> list[tuple[str, str]]:
        """The pairs of method and estimator that have results: methods as in the recipe, others after them."""
        pairs = set(self.results.values(lambda cell: (cell.method, cell.estimator)))
        recipe = list(self.results.recipe["methods"])
        methods = recipe + sorted({method for method, _ in pairs} - set(recipe))
        return [(method, name) for method in methods for name in self.estimators if (method, name) in pairs]

    @property
    def one_attacker(self) -> bool:
        """Whether the attacks differ in their gradient alone, so that one attacker could choose the worst of them."""
        attacks = {result.cell.attack for result in self.results.cells if result.cell.attack}
        return len({replace(attack, gradient="exact") for attack in attacks}) == 1

    def group(self, method: str, estimator: str) -> Results:
        """Return the results of a method with an estimator."""
        return self.results.select(lambda cell: (cell.method, cell.estimator) == (method, estimator))

    def in_column(self, column: Any, among: Results | None = None) -> Results:
        """Return the results of one column.

        The baseline has one gradient only, so its results under one count in the columns of the others too.

        Args:
            column: one of ``columns``.
            among: the results to choose from; all of the panel without it.
        """
        chosen: list[Result] = []
        results = self.results if among is None else among
        for group in results.by_method():
            own = [result for result in group if self.column_of(result.cell) == column]
            same = [result for result in group if self._is_same(result.cell, column)]
            same.sort(key=lambda result: attack_rank(result.cell.attack))
            chosen += own or [replace(one, cell=replace(one.cell, attack=column)) for one in same[:1]]
        return replace(results, cells=chosen)

    def _is_same(self, cell: Cell, column: Any) -> bool:
        """Return whether the attack of a cell is that of a column: it is for a mean if only the gradients differ."""
        if self.sweep:
            return False
        return effective_attack(cell.attack, cell.estimator) == effective_attack(column, cell.estimator)


def split_into_panels(results: Results) -> list[Panel]:
    """Return the panels of a recipe's results; a title names what distinguishes each from the others."""
    sweep = results.recipe["axis"] in SWEEPS

    def key_of(cell: Cell) -> tuple[str, ...]:
        setting = cell.setting
        sizes = "" if sweep else f"{setting.attacker} malicious"
        objective = f"{objective_label(cell.attack.objective)} attack" if cell.attack else ""
        severity = "" if cell.corruption == UNCORRUPTED else f"severity {setting.severity}"
        return cell.dataset, setting.model, severity, sizes, objective

    keys = results.values(key_of)
    shown = _find_differing(keys)
    return [
        Panel(", ".join(key[i] for i in shown if key[i]), results.select(_equals(key_of, key))) for key in sorted(keys)
    ]


def _find_differing(keys: Sequence[tuple[str, ...]]) -> list[int]:
    """Return which entries of the keys belong into titles: those that differ, and the objective or the dataset."""
    dataset, objective = 0, 4
    shown = {i for i in range(5) if len({key[i] for key in keys}) > 1} | {objective}
    return sorted(shown if any(key[objective] for key in keys) else shown | {dataset})


def _equals(key_of: Callable[[Cell], tuple[str, ...]], key: tuple[str, ...]) -> Callable[[Cell], bool]:
    return lambda cell: key_of(cell) == key
