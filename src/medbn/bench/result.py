"""Results: rates, errors and mean IoU of any selection of cells, with intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .. import confusion
from . import intervals
from .cell import Attack, Cell, effective_attack
from .intervals import Interval
from .metrics import COUNTED, confusion_name, error_rate, predictions_counted
from .recipe import SMOKE_SUFFIX
from .store import Run


@dataclass(frozen=True)
class Result:
    """One cell with the metrics of its batches; batches of its warm-up are left out."""

    key: str
    cell: Cell
    batches: list[dict[str, Any]]
    facts: dict[str, Any]
    others: tuple[str, ...] = ()
    """The keys of all cells that the batches are from, where these are several: a choice among attacks."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the cells that the batches are from."""
        return self.others or (self.key,)

    @property
    def stream(self) -> tuple[Any, ...]:
        """What determines the images of every batch, and which of them are malicious."""
        return self.cell.setting, self.cell.corruption, self.cell.seed


@dataclass(frozen=True)
class Results:
    """The results of one recipe, from all its runs in a store."""

    recipe: dict[str, Any]
    runs: list[Run]
    cells: list[Result]

    @property
    def is_smoke(self) -> bool:
        """Whether the recipe is the short form of one, whose numbers prove nothing."""
        return str(self.recipe["name"]).endswith(SMOKE_SUFFIX)

    # --- selections ---------------------------------------------------------------------------------------------------

    def select(self, keep: Callable[[Cell], bool]) -> Results:
        """Return the results of the cells for which ``keep`` returns True."""
        return replace(self, cells=[result for result in self.cells if keep(result.cell)])

    def values(self, of: Callable[[Cell], Any]) -> list[Any]:
        """Return the distinct values of a function of the cells, in order of appearance."""
        return list(dict.fromkeys(of(result.cell) for result in self.cells))

    def complete(self, attacks: Sequence[Attack | None] | None = None) -> Results:
        """Return the batches on which all of some attacks were run; without ``attacks``, all that occur here."""
        return replace(self, cells=[result for group in self._complete_groups(attacks) for result in group])

    def hardest(self, attacks: Sequence[Attack | None] | None = None) -> Results:
        """Return for every batch the most harmful of some attacks, as if one attacker chose among them.

        That is one that hits its target, or for segmentation the one with the lowest mean IoU of the batch, or the one
        with the highest error. Batches on which some of them were not run are left out: the worst of fewer attacks is
        not the worst case.

        Args:
            attacks: without it, all that occur here.
        """
        attacks = self.values(lambda cell: cell.attack) if attacks is None else attacks
        cells = []
        for group in self._complete_groups(attacks):
            attacked = zip(*(result.batches for result in group), strict=True)
            worst = [max(same, key=_harm) for same in attacked]
            keys = tuple(result.key for result in group)
            cell = replace(group[0].cell, attack=attacks[0])
            cells.append(replace(group[0], cell=cell, batches=worst, others=keys))
        return replace(self, cells=cells)

    def _complete_groups(self, attacks: Sequence[Attack | None] | None) -> list[list[Result]]:
        """Return for each stream, method and estimator one result per attack, cut to the batches that all have."""
        attacks = self.values(lambda cell: cell.attack) if attacks is None else attacks
        complete = []
        for group in self.by_method():
            estimator = group[0].cell.estimator
            longest: dict[Attack | None, Result] = {}
            for result in sorted(group, key=lambda result: len(result.batches)):
                longest[effective_attack(result.cell.attack, estimator)] = result
            needed = dict.fromkeys(effective_attack(attack, estimator) for attack in attacks)
            length = min((len(longest[one].batches) if one in longest else 0 for one in needed), default=0)
            if length:
                complete.append([replace(longest[one], batches=longest[one].batches[:length]) for one in needed])
        return complete

    def batch_ids(self) -> set[tuple[Any, ...]]:
        """Return which batches of which streams each method had: ``(*stream, method, number)``."""
        return {(*result.stream, result.cell.method, n) for result in self.cells for n in range(len(result.batches))}

    def only(self, batch_ids: set[tuple[Any, ...]]) -> Results:
        """Return the batches whose ids are in ``batch_ids``."""
        cells = []
        for result in self.cells:
            stream = (*result.stream, result.cell.method)
            batches = [batch for n, batch in enumerate(result.batches) if (*stream, n) in batch_ids]
            cells += [replace(result, batches=batches)] if batches else []
        return replace(self, cells=cells)

    def by_method(self) -> list[list[Result]]:
        """Group the cells that differ in their attack alone."""
        groups: dict[tuple[Any, ...], list[Result]] = {}
        for result in self.cells:
            groups.setdefault((*result.stream, result.cell.method, result.cell.estimator), []).append(result)
        return list(groups.values())

    # --- numbers ------------------------------------------------------------------------------------------------------

    @cached_property
    def batches(self) -> list[dict[str, Any]]:
        """The metrics of all batches of all cells."""
        return [batch for result in self.cells for batch in result.batches]

    def success(self) -> Interval | None:
        """Return the rate at which the target class was predicted."""
        hits = [batch["hit"] for batch in self.batches if "hit" in batch]
        return intervals.wilson(sum(hits), len(hits)) if hits else None

    @cached_property
    def dense(self) -> bool:
        """Whether predictions are those of pixels."""
        return any(confusion_name(which) in batch for batch in self.batches for which in COUNTED)

    def error(self, which: str = "wrong") -> Interval | None:
        """Return an error rate, of images or of pixels.

        Args:
            which: ``"wrong"``, benign images under attack; ``"wrong_without"``, the same images without the attack;
                ``"wrong_clean"``, all images without the attack.
        """
        counted = self._select_batches(which)
        if not counted:
            return None
        if self.dense:
            accuracy = self._from_confusion(which, intervals.pixel_accuracy)
            return accuracy and Interval(1 - accuracy.value, 1 - accuracy.high, 1 - accuracy.low)
        wrong = [batch[which] for batch in counted.values()]
        images = [predictions_counted(batch, which) for batch in counted.values()]
        return intervals.bootstrap(wrong, images, [key[:-1] for key in counted])

    def mean_iou(self, which: str = "wrong") -> Interval | None:
        """Return the mean IoU of the classes that occur in the labels, from the sum of the confusion matrices.

        Args:
            which: the predictions, named as in ``error``.
        """
        return self._from_confusion(which, intervals.mean_iou)

    def pixel_accuracy(self, which: str = "wrong") -> Interval | None:
        """Return the share of pixels that are predicted correctly; ``which`` is that of ``error``."""
        return self._from_confusion(which, intervals.pixel_accuracy)

    def confusion(self, which: str = "wrong") -> Tensor | None:
        """Return the sum of the confusion matrices, labels in rows; ``which`` is that of ``error``."""
        matrices = self._matrices(which).values()
        return torch.stack(list(matrices)).sum(0) if matrices else None

    def class_iou(self, which: str = "wrong") -> list[Interval | None]:
        """Return the IoU of each class; None for classes that no label has.

        Args:
            which: the predictions, named as in ``error``.
        """
        counts = self.confusion(which)
        if counts is None:
            return []

        def of_class(k: int) -> Interval | None:
            return self._from_confusion(which, lambda matrices: confusion.iou_per_class(matrices)[..., k])

        return [of_class(k) if occurs else None for k, occurs in enumerate((counts.sum(dim=1) > 0).tolist())]

    def measure(self, which: str = "wrong") -> Interval | None:
        """Return the number that reports show.

        That is the success rate of a targeted attack, the mean IoU of segmentation, and otherwise the error.
        """
        if which == "wrong" and self._targeted:
            return self.success()
        return self.mean_iou(which) if self.dense else self.error(which)

    def higher_is_better(self, which: str = "wrong") -> bool:
        """Return whether a higher ``measure`` is better: that is so of a mean IoU alone."""
        return self.dense and not (which == "wrong" and self._targeted)

    @cached_property
    def _targeted(self) -> bool:
        return any("hit" in batch for batch in self.batches)

    def worst(self, attacks: Sequence[Attack | None] | None = None) -> Interval | None:
        """Return the measure if the attacker takes for every batch the most harmful attack; see ``hardest``."""
        return self.hardest(attacks).measure()

    def minus(self, other: Results, which: str = "wrong") -> Interval | None:
        """Return how much higher the measure is here than in ``other``, over the batches that both have."""
        if self.higher_is_better(which):
            here, there = self._paired_matrices(which), other._paired_matrices(which)
            shared = [key for key in here if key in there]
            pairs = [there[key] for key in shared], [here[key] for key in shared]
            return intervals.paired_confusion(*pairs, intervals.mean_iou) if shared else None
        mine, others = self.by_batch(which), other.by_batch(which)
        both = [key for key in mine if key in others]
        return intervals.paired_difference([others[key] for key in both], [mine[key] for key in both]) if both else None

    def by_batch(self, which: str = "wrong") -> dict[tuple[Any, ...], float]:
        """Return the harm to each batch by each attack; the error without attack is that of all attacks."""
        return {
            key: float(batch["hit"]) if "hit" in batch and which == "wrong" else error_rate(batch, which)
            for key, batch in self._by_batch(which).items()
        }

    def _by_batch(self, which: str) -> dict[tuple[Any, ...], dict[str, Any]]:
        """Return the metrics of the batches that have ``which``, by what other estimators' batches have too."""
        return {
            (*result.stream, result.cell.method, result.cell.attack if which == "wrong" else None, number): batch
            for result in self.cells
            for number, batch in enumerate(result.batches)
            if which in batch
        }

    def _select_batches(self, which: str) -> dict[tuple[Any, ...], dict[str, Any]]:
        """Return the metrics of the batches that have ``which``.

        Without attack, a batch is the same for all attacks, and counts once.
        """
        return {
            (
                *result.stream,
                result.cell.method,
                result.cell.estimator,
                result.cell.attack if which == "wrong" else None,
                number,
            ): batch
            for result in self.cells
            for number, batch in enumerate(result.batches)
            if which in batch
        }

    def _matrices(self, which: str) -> dict[tuple[Any, ...], Tensor]:
        return _read_matrices(self._select_batches(which), which)

    def _paired_matrices(self, which: str) -> dict[tuple[Any, ...], Tensor]:
        return _read_matrices(self._by_batch(which), which)

    def _from_confusion(self, which: str, of: Callable[[Tensor], Tensor]) -> Interval | None:
        matrices = self._matrices(which)
        if not matrices:
            return None
        return intervals.bootstrap_confusion(list(matrices.values()), of, [key[:-1] for key in matrices])

    def seconds(self) -> tuple[float, float]:
        """Return the time spent on attacks, and on everything else."""
        return sum(b.get("attack_s", 0.0) for b in self.batches), sum(b.get("adapt_s", 0.0) for b in self.batches)

    # --- progress -----------------------------------------------------------------------------------------------------

    def has_unfinished_streams(self) -> bool:
        """Return whether a stream was stopped before it had the batches that its last run asked for."""
        last_run = {key: run for run in self.runs for key in run.keys}
        longest: dict[Any, int] = {}
        for result in self.cells:
            setting = result.cell.setting
            longest[setting] = max(longest.get(setting, 0), len(result.batches))
        for result in self.cells:
            run = last_run.get(result.key)
            if run is None or run.ended is not None:
                continue
            batches = run.recipe.get("batches")
            expected = longest[result.cell.setting] if batches is None else batches - result.cell.warm_up
            if len(result.batches) < expected:
                return True
        return False

    def has_unstarted_streams(self) -> bool:
        """Return whether the last run, or a shard, has streams without any batch; call this before any selection."""
        present = {result.key for result in self.cells}
        runs = [run for run in self.runs if run is self.runs[-1] or "shard" in run.facts]
        return any(run.ended is None and not set(run.keys) <= present for run in runs)


def _harm(batch: dict[str, Any]) -> float:
    """Return a number by which attacks on the same batch can be compared."""
    if "hit" in batch:
        return float(batch["hit"])
    matrix = batch.get(confusion_name("wrong"))
    return float(batch["wrong"]) if matrix is None else -confusion.mean_iou(torch.tensor(matrix))


def _read_matrices(batches: dict[tuple[Any, ...], dict[str, Any]], which: str) -> dict[tuple[Any, ...], Tensor]:
    name = confusion_name(which)
    return {key: torch.tensor(batch[name]) for key, batch in batches.items() if name in batch}
