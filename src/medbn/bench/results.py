"""The results in a store: rates and errors of any selection of cells, with intervals."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from .._errors import unknown_name
from . import intervals
from .cell import Attack, Cell, Setting, check_types, effective_attack
from .intervals import Interval
from .metrics import check_metrics
from .recipe import SMOKE_SUFFIX
from .store import Run, Store, StoredCell


@dataclass(frozen=True)
class Result:
    """One cell with the metrics of its batches; batches of its warm-up are left out."""

    key: str
    cell: Cell
    batches: list[dict[str, Any]]
    facts: dict[str, Any]

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

        Batches on which some of them were not run are left out: the worst of fewer attacks is not the worst case.

        Args:
            attacks: without it, all that occur here.
        """
        attacks = self.values(lambda cell: cell.attack) if attacks is None else attacks
        cells = []
        for group in self._complete_groups(attacks):
            attacked = zip(*(result.batches for result in group), strict=True)
            worst = [max(same, key=lambda batch: batch["hit" if "hit" in batch else "wrong"]) for same in attacked]
            cells.append(replace(group[0], cell=replace(group[0].cell, attack=attacks[0]), batches=worst))
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

    def error(self, which: str = "wrong") -> Interval | None:
        """Return an error rate.

        Args:
            which: ``"wrong"``, benign images under attack; ``"wrong_without"``, the same images without the attack;
                ``"wrong_clean"``, all images without the attack.
        """
        counted = "benign" if which in ("wrong", "wrong_without") else "images"
        # Without attack, a batch is the same for all attacks, and counts once.
        counts = {
            (
                *result.stream,
                result.cell.method,
                result.cell.estimator,
                result.cell.attack if which == "wrong" else None,
                n,
            ): (
                batch[which],
                batch.get(counted, batch["images"]),
            )
            for result in self.cells
            for n, batch in enumerate(result.batches)
            if which in batch
        }
        if not counts:
            return None
        wrong, images = zip(*counts.values(), strict=True)
        return intervals.bootstrap(wrong, images, [key[:-1] for key in counts])

    def harm(self, which: str = "wrong") -> Interval | None:
        """Return the success rate of a targeted attack, or the error under an indiscriminate one."""
        targeted = any("hit" in batch for batch in self.batches)
        return self.success() if targeted and which == "wrong" else self.error(which)

    def worst(self, attacks: Sequence[Attack | None] | None = None) -> Interval | None:
        """Return the harm if the attacker takes for every batch the most harmful attack; see ``hardest``."""
        return self.hardest(attacks).harm()

    def minus(self, other: Results, which: str = "wrong") -> Interval | None:
        """Return how much higher the harm is here than in ``other``, over the batches that both have."""
        here, there = self.by_batch(which), other.by_batch(which)
        shared = [key for key in here if key in there]
        return (
            intervals.paired_difference([there[key] for key in shared], [here[key] for key in shared])
            if shared
            else None
        )

    def by_batch(self, which: str = "wrong") -> dict[tuple[Any, ...], float]:
        """Return the harm to each batch by each attack; the error without attack is that of all attacks."""
        harm = {}
        for result in self.cells:
            for number, batch in enumerate(result.batches):
                if which in batch:
                    attack = result.cell.attack if which == "wrong" else None
                    rate = batch[which] / batch.get("benign", batch["images"])
                    value = batch["hit"] if "hit" in batch and which == "wrong" else rate
                    harm[(*result.stream, result.cell.method, attack, number)] = value
        return harm

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
        """Return whether the last run has streams without any batch; call this before any selection."""
        last = self.runs[-1]
        return last.ended is None and not set(last.keys) <= {result.key for result in self.cells}


def read(store: Store, names: Sequence[str] | None = None) -> list[Results]:
    """Return the results of recipes in a store, in the order in which they were first run.

    Args:
        store: an open store.
        names: of recipes; None for all.
    """
    stored = {cell.key: cell for cell in store.cells()}
    by_name: dict[str, list[Run]] = {}
    for run in store.runs():
        _check_run(store, run)
        by_name.setdefault(run.recipe["name"], []).append(run)
    for name in names or ():
        if name not in by_name:
            raise unknown_name("recipe in this store", name, by_name)
    return [
        Results(runs[-1].recipe, runs, _select_cells(store, stored, runs))
        for name, runs in by_name.items()
        if not names or name in names
    ]


def _check_run(store: Store, run: Run) -> None:
    """Raise a StoreError unless the fields of a stored run have the types that this module and reports rely on."""
    recipe = run.recipe
    kinds = {
        **dict.fromkeys(("name", "about", "scenario", "predict", "axis"), str),
        **dict.fromkeys(("settings", "attacks", "methods", "estimators", "corruptions", "seeds", "published"), list),
        "options": dict,
    }
    wrong = [name for name, kind in kinds.items() if not isinstance(recipe.get(name), kind)]
    wrong += [name for name in ("batches", "warm_up") if not isinstance(recipe.get(name) or 0, int)]
    try:
        [Setting(**setting) for setting in recipe["settings"]]
        [Attack(**attack) for attack in recipe["attacks"]]
    except (KeyError, TypeError, ValueError):
        wrong.append("settings or attacks")
    wrong += [name for name in ("medbn", "torch", "python") if not isinstance(run.facts.get(name), str)]
    if not all(0 <= moment < 1e11 for moment in (run.began, run.ended or 0.0)):
        wrong.append("time")
    if wrong:
        raise store.damaged(f"run {run.id} cannot be read ({wrong[0]})")


def _make_result(store: Store, stored: StoredCell) -> Result:
    """Return a stored cell as a result; a StoreError if a part is missing or has another type."""
    try:
        cell = Cell.from_dict(stored.cell)
        check_types(cell)
        for number, batch in enumerate(stored.batches):
            check_metrics(batch, attacked=cell.attack is not None and number >= cell.warm_up)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = " ".join(str(error).split())
        raise store.damaged(f"the cell {stored.key:.20} cannot be read ({what})") from None
    return Result(stored.key, cell, stored.batches[cell.warm_up :], stored.facts)


def _select_cells(store: Store, stored: dict[str, StoredCell], runs: list[Run]) -> list[Result]:
    """Return the cells of the last run, and those of earlier runs that it could have had under other narrowing.

    Of cells with the same description the last one counts: data, weights or our algorithm have changed since.
    """
    last = runs[-1].recipe
    settings = [_without_sizes(setting) for setting in last["settings"]]
    datasets = {setting["data"] for setting in last["settings"]}
    results = {key: _make_result(store, stored[key]) for run in runs for key in run.keys if key in stored}
    by_description: dict[str, str] = {}
    for run in runs:
        for key in run.keys:
            if key not in stored:
                continue
            cell = stored[key].cell
            same = (
                cell["options"] == last["options"].get(cell["method"], {})
                and (cell["predict"], cell["scenario"]) == (last["predict"], last["scenario"])
                and cell.get("warm_up", 0) == (last.get("warm_up", 0) if cell["attack"] else 0)
                and cell["attack"] in (last["attacks"] or [None])
                and (_without_sizes(cell["setting"]) in settings or cell["setting"]["data"] not in datasets)
            )
            if same:
                by_description[json.dumps(cell, sort_keys=True)] = key
    keys = set(by_description.values())
    return [results[key] for key in stored if key in keys]  # in the order in which they were started


def _without_sizes(setting: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in setting.items() if name not in ("batch_size", "malicious")}
