"""Run recipes: check what they need, run the cells that the store does not have, and record the runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from .cell import Cell
from .cell_stream import make_adapter
from .events import Event, OnEvent, ignore
from .executors import Executor, InProcess
from .loading import load_cell
from .place import Place, deterministic, machine_facts
from .recipe import Recipe
from .requirements import check_requirements
from .shard import Shard, identify
from .store import Store


def run(
    recipes: Recipe | Sequence[Recipe],
    store: str | Path,
    *,
    place: Place | None = None,
    executor: Executor | None = None,
    on_event: OnEvent = ignore,
    seconds: float | None = None,
    command: str = "",
    shard: Shard | None = None,
) -> bool:
    """Run recipes into a store, and return whether all of their cells are finished.

    Cells that the store already has are not run again, and cells that were stopped continue after their last batch: to
    continue a run, call this again.

    Args:
        recipes: one or several; what they have in common runs once.
        store: the file of results; it is created if there is none.
        place: the data folder, the device and the threads.
        executor: where cells run; in this process by default.
        on_event: called with every event.
        seconds: stop after this long; the batch in progress is finished first.
        command: the command that repeats this run, for the report.
        shard: run this part only; ``merge`` joins the stores of all parts.
    """
    place = place or Place()
    deadline = None if seconds is None else time.monotonic() + seconds
    recipes = (recipes,) if isinstance(recipes, Recipe) else tuple(recipes)
    for recipe in recipes:
        check_requirements(recipe, place.root)
        if not list(recipe.cells()):
            raise ValueError(f"recipe {recipe.name!r} has nothing to run: no attack without malicious images.")
        check_options(recipe, place)
    with deterministic(place), Store(store) as opened:
        runs, work = _begin_runs(recipes, opened, place, command, shard)
        unfinished = []
        for key, (cell, batches) in work.items():
            if opened.progress(key)[0] < batches:
                unfinished.append((cell, batches))
            else:
                on_event(Event("finished", key, cell, batches, batches))
    busy = 0

    def watch(event: Event) -> None:
        nonlocal busy
        busy += event.kind == "busy"
        on_event(event)
        if deadline is not None and event.kind == "batch" and time.monotonic() > deadline:
            raise _TimeIsUpError

    try:
        (executor or InProcess(place)).run(unfinished, Path(store), watch)
    except _TimeIsUpError:
        return False
    if not busy:
        with Store(store) as opened:
            for run_id in runs:
                opened.end_run(run_id)
    return not busy


def check_options(recipe: Recipe, place: Place) -> None:
    """Raise a ValueError for wrong values of methods' options, before anything runs.

    A method checks its options when it is made, so one adapter of every method that has options is made here.
    """
    cells = {(c.setting.model, c.setting.data, c.method): c for c in recipe.cells() if c.options}
    for cell in cells.values():
        loaded = load_cell(cell, place, recipe.batches)
        try:
            make_adapter(loaded, place.device, source_batches=1)
        except (TypeError, ValueError) as error:
            raise ValueError(f"options of {cell.method}: {error}") from error


class _TimeIsUpError(Exception):
    """The time that was given for a run is over."""


def _begin_runs(
    recipes: Sequence[Recipe], store: Store, place: Place, command: str, shard: Shard | None
) -> tuple[list[int], dict[str, tuple[Cell, int]]]:
    """Record one run per recipe; return their numbers, and every cell by its key with its number of batches."""
    work: dict[str, tuple[Cell, int]] = {}
    runs = []
    chosen = None if shard is None else shard.select(cell for recipe in recipes for cell in recipe.cells())
    facts = machine_facts(place) if shard is None else {**machine_facts(place), "shard": str(shard)}
    for recipe in recipes:
        keys = []
        for cell in recipe.cells():
            if chosen is not None and identify(cell) not in chosen:
                continue
            loaded = load_cell(cell, place, recipe.batches)
            keys.append(loaded.key)
            if work.get(loaded.key, (cell, 0))[1] < loaded.batches:
                work[loaded.key] = cell, loaded.batches
            del loaded  # frees its dataset and model, unless they are cached
        runs.append(store.begin_run(asdict(recipe), command, facts, keys))
    return runs, work
