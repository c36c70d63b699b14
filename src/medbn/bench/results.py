"""What a store holds, as numbers: rates and errors of any selection of cells, with intervals."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from . import intervals
from .cell import Cell
from .intervals import Interval
from .store import Run, Store, Stored


@dataclass(frozen=True)
class Result:
    """One cell and its batches, without those that were served before the first attack."""

    key: str
    cell: Cell
    batches: list[dict[str, Any]]
    facts: dict[str, Any]

    @property
    def stream(self) -> tuple[Any, ...]:
        """What two cells share whose batches are the same images with the same malicious places."""
        return self.cell.setting, self.cell.corruption, self.cell.seed


@dataclass(frozen=True)
class Results:
    """Results of one recipe: those of all its runs in a store."""

    recipe: dict[str, Any]
    runs: list[Run]
    cells: list[Result]

    def select(self, keep: Callable[[Cell], bool]) -> Results:
        """Only some of the cells."""
        return Results(self.recipe, self.runs, [result for result in self.cells if keep(result.cell)])

    def values(self, of: Callable[[Cell], Any]) -> list[Any]:
        """What occurs, in order of appearance."""
        return list(dict.fromkeys(of(result.cell) for result in self.cells))

    @cached_property
    def batches(self) -> list[dict[str, Any]]:
        """All batches of all cells."""
        return [batch for result in self.cells for batch in result.batches]

    def success(self) -> Interval | None:
        """The rate at which the target class was predicted."""
        hits = [batch["hit"] for batch in self.batches if "hit" in batch]
        return intervals.wilson(sum(hits), len(hits)) if hits else None

    def error(self, which: str = "wrong") -> Interval | None:
        """An error rate: ``wrong`` under attack, ``wrong_without`` on the same images, ``wrong_clean`` on all."""
        counted = "benign" if which in ("wrong", "wrong_without") else "images"
        # Without attack, a batch is the same whatever attack was run on it, and counts once.
        found = {
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
        if not found:
            return None
        wrong, images = zip(*found.values(), strict=True)
        return intervals.bootstrap(wrong, images, [key[:-1] for key in found])

    def harm(self, which: str = "wrong") -> Interval | None:
        """The success rate of a targeted attack, or the error under an indiscriminate one."""
        targeted = any("hit" in batch for batch in self.batches)
        return self.success() if targeted and which == "wrong" else self.error(which)

    def complete(self) -> Results:
        """Only the batches on which all of the attacks were run."""
        streams: dict[tuple[Any, ...], list[Result]] = {}
        for result in self.cells:
            streams.setdefault((*result.stream, result.cell.method, result.cell.estimator), []).append(result)
        most = max(map(len, streams.values()), default=0)
        kept = []
        for group in streams.values():
            upto = min(len(result.batches) for result in group) if len(group) == most else 0
            kept += [replace(result, batches=result.batches[:upto]) for result in group if upto]
        return replace(self, cells=kept)

    def hardest(self) -> Results:
        """For every batch the most harmful of the attacks on it, as if these were one attack.

        Batches on which some of the attacks were not run do not count.
        """
        streams: dict[tuple[Any, ...], list[Result]] = {}
        for result in self.complete().cells:
            streams.setdefault((*result.stream, result.cell.method, result.cell.estimator), []).append(result)
        made = []
        for group in streams.values():
            attacked = zip(*(result.batches for result in group), strict=True)
            worst = [max(same, key=lambda batch: batch["hit" if "hit" in batch else "wrong"]) for same in attacked]
            made.append(replace(group[0], batches=worst))
        return replace(self, cells=made)

    def worst(self) -> Interval | None:
        """The harm when for every batch the attacker takes the most harmful attack."""
        return self.hardest().harm()

    def places(self) -> set[tuple[Any, ...]]:
        """Which batches of which streams were given to which methods."""
        return {(*result.stream, result.cell.method, n) for result in self.cells for n in range(len(result.batches))}

    def only(self, places: set[tuple[Any, ...]]) -> Results:
        """Only the batches at these places."""
        kept = []
        for result in self.cells:
            where = (*result.stream, result.cell.method)
            batches = [batch for n, batch in enumerate(result.batches) if (*where, n) in places]
            kept += [replace(result, batches=batches)] if batches else []
        return replace(self, cells=kept)

    def unfinished(self) -> bool:
        """Whether some of these streams were left before they had the batches that their last run asked for."""
        last = {key: run for run in self.runs for key in run.keys}
        longest: dict[Any, int] = {}
        for result in self.cells:
            setting = result.cell.setting
            longest[setting] = max(longest.get(setting, 0), len(result.batches))
        for result in self.cells:
            run = last.get(result.key)
            if run is None or run.ended is not None:
                continue
            asked = run.recipe.get("batches")
            wanted = longest[result.cell.setting] if asked is None else asked - result.cell.warm_up
            if len(result.batches) < wanted:
                return True
        return False

    def unbegun(self) -> bool:
        """Whether the last run has streams without any batch; to be asked before anything is selected."""
        last = self.runs[-1]
        return last.ended is None and not set(last.keys) <= {result.key for result in self.cells}

    def minus(self, other: Results, which: str = "wrong") -> Interval | None:
        """How much higher the error is here than there, over the batches that both have."""
        mine, theirs = self.by_batch(which), other.by_batch(which)
        shared = [key for key in mine if key in theirs]
        return intervals.paired([theirs[key] for key in shared], [mine[key] for key in shared]) if shared else None

    def by_batch(self, which: str = "wrong") -> dict[tuple[Any, ...], float]:
        """The harm done to each batch by each attack."""
        found = {}
        for result in self.cells:
            attack = result.cell.attack
            for number, batch in enumerate(result.batches):
                if which in batch:
                    value = batch["hit"] if "hit" in batch and which == "wrong" else batch[which] / batch["benign"]
                    found[(*result.stream, result.cell.method, attack, number)] = value
        return found

    def seconds(self) -> tuple[float, float]:
        """Time spent on attacks, and on everything else."""
        return sum(b.get("attack_s", 0.0) for b in self.batches), sum(b.get("adapt_s", 0.0) for b in self.batches)


def read(store: Store, names: Sequence[str] | None = None) -> list[Results]:
    """The results of every recipe in a store, in the order in which they were first run."""
    stored = {cell.key: cell for cell in store.cells()}
    by_name: dict[str, list[Run]] = {}
    for run in store.runs():
        by_name.setdefault(run.recipe["name"], []).append(run)
    for name in names or ():
        if name not in by_name:
            from .._errors import unknown_name

            raise unknown_name("recipe in this store", name, by_name)
    return [
        Results(runs[-1].recipe, runs, _results(stored, runs))
        for name, runs in by_name.items()
        if not names or name in names
    ]


def _results(stored: dict[str, Stored], runs: list[Run]) -> list[Result]:
    """The cells of the last run, and those of earlier runs that only differ from it in what was narrowed.

    Of cells with the same description (their data, weights or our algorithm have changed since), the last one counts.
    """
    last = runs[-1].recipe
    settings = [_without_sizes(setting) for setting in last["settings"]]
    datasets = {setting["data"] for setting in last["settings"]}
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
    kept = set(by_description.values())
    # In the order in which they were begun.
    cells = {key: Cell.from_dict(one.cell) for key, one in stored.items() if key in kept}
    return [Result(k, cell, stored[k].batches[cell.warm_up :], stored[k].facts) for k, cell in cells.items()]


def _without_sizes(setting: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in setting.items() if name not in ("batch_size", "malicious")}
