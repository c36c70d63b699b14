"""Read the results in a store."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from .._check_types import check_fields
from .._errors import one_line, unknown_name
from .cell import Attack, Cell, Setting
from .metrics import check_metrics
from .result import Result, Results
from .store import Run, Store, StoredCell

__all__ = ["Result", "Results", "read"]


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
    wrong += [] if isinstance(recipe.get("fuse", False), bool) else ["fuse"]
    wrong += [name for name in ("medbn", "torch", "python") if not isinstance(run.facts.get(name), str)]
    if not all(0 <= moment < 1e11 for moment in (run.began, run.ended or 0.0)):
        wrong.append("time")
    if wrong:
        raise store.damaged(f"run {run.id} cannot be read ({wrong[0]})")


def _make_result(store: Store, stored: StoredCell) -> Result:
    """Return a stored cell as a result; a StoreError if a part is missing or has another type."""
    try:
        cell = Cell.from_dict(stored.cell)
        check_fields(cell)
        for number, batch in enumerate(stored.batches):
            check_metrics(batch, attacked=cell.attack is not None and number >= cell.warm_up)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise store.damaged(f"the cell {stored.key:.20} cannot be read ({one_line(error)})") from None
    return Result(stored.key, cell, stored.batches[cell.warm_up :], stored.facts)


def _select_cells(store: Store, stored: dict[str, StoredCell], runs: list[Run]) -> list[Result]:
    """Return the cells of the last run, and those of earlier runs that it could have had under other narrowing.

    Of cells with the same description the last one counts: data, weights or our algorithm have changed since.
    """
    last = runs[-1].recipe
    settings = [_without_counts(Setting(**setting)) for setting in last["settings"]]
    datasets = {setting["data"] for setting in last["settings"]}
    attacks: list[Attack | None] = [Attack(**attack) for attack in last["attacks"]] or [None]
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
                and cell.get("fuse", False) == last.get("fuse", False)
                and results[key].cell.attack in attacks
                and (_without_counts(results[key].cell.setting) in settings or cell["setting"]["data"] not in datasets)
            )
            if same:  # described by this version: fields that have been added since have their defaults
                by_description[json.dumps(results[key].cell.to_dict(), sort_keys=True)] = key
    keys = set(by_description.values())
    return [results[key] for key in stored if key in keys]  # in the order in which they were started


def _without_counts(setting: Setting) -> Setting:
    return replace(setting, batch_size=1, malicious=0)
