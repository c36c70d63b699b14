"""Run recipes: say what is missing before anything starts, then run their cells and note the runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from .cell import Cell
from .executors import Executor, InProcess
from .recipe import Recipe
from .runner import Event, Place, Report, adapter_of, deterministic, facts, missing, prepare
from .store import Store


class MissingError(FileNotFoundError):
    """Data or weights are not there; the message says what and how to get it."""


def check(recipe: Recipe, place: Place) -> None:
    """Raise one error with everything that the recipe needs and is not there."""
    lacking: dict[str, None] = {}
    for setting in recipe.settings:
        lacking.update(dict.fromkeys(missing(setting, recipe.methods, place.root)))
    if lacking:
        narrow = " Or narrow the recipe with --data." if len({s.data for s in recipe.settings}) > 1 else ""
        raise MissingError(f"recipe {recipe.name!r} needs: {'; '.join(lacking)}.{narrow}")


def check_options(recipe: Recipe, place: Place) -> None:
    """Make an adapter of every method that is given options, so that wrong ones are refused before anything runs."""
    given = {(c.setting.model, c.setting.data, c.method): c for c in recipe.cells() if c.options}
    for cell in given.values():
        ready = prepare(cell, place, recipe.batches)
        try:
            adapter_of(ready, place.device, source_batches=1)
        except (TypeError, ValueError) as error:
            raise ValueError(f"options of {cell.method}: {error}") from error


class _TimeIsUpError(Exception):
    pass


def run(
    recipes: Recipe | Sequence[Recipe],
    store: str | Path,
    *,
    place: Place | None = None,
    executor: Executor | None = None,
    report: Report = lambda event: None,
    seconds: float | None = None,
    command: str = "",
) -> bool:
    """Run recipes into a store, and say whether all is done.

    Cells that the store has already are not run again, and cells that were stopped go on from their last batch. To
    continue a run is to call this again. After ``seconds`` it stops. ``command`` is what the report says to type.
    """
    place = place or Place()
    until = None if seconds is None else time.monotonic() + seconds
    recipes = (recipes,) if isinstance(recipes, Recipe) else tuple(recipes)
    for recipe in recipes:
        check(recipe, place)
        if not list(recipe.cells()):
            raise ValueError(f"recipe {recipe.name!r} has nothing to run: no attack without malicious images.")
        check_options(recipe, place)
    wanted: dict[str, tuple[Cell, int]] = {}
    numbers = []
    with deterministic(place), Store(store) as opened:
        for recipe in recipes:
            keys = []
            for cell in recipe.cells():
                ready = prepare(cell, place, recipe.batches)
                keys.append(ready.key)
                if wanted.get(ready.key, (cell, 0))[1] < ready.batches:
                    wanted[ready.key] = cell, ready.batches
                del ready  # it holds a dataset and a model
            numbers.append(opened.begin(asdict(recipe), command, facts(place), keys))
        unfinished = []
        for key, (cell, batches) in wanted.items():
            if opened.progress(key)[0] < batches:
                unfinished.append((cell, batches))
            else:
                report(Event("done", key, cell, batches, batches))
    busy = 0

    def watch(event: Event) -> None:
        nonlocal busy
        busy += event.kind == "busy"
        report(event)
        if until is not None and event.kind == "batch" and time.monotonic() > until:
            raise _TimeIsUpError

    try:
        (executor or InProcess(place)).run(unfinished, Path(store), watch)
    except _TimeIsUpError:
        return False
    if not busy:
        with Store(store) as opened:
            for number in numbers:
                opened.end(number)
    return not busy
