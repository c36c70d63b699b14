"""Run a recipe: say what is missing before anything starts, then run its cells and note the run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from .executors import Executor, InProcess
from .recipe import Recipe
from .runner import Event, Place, Report, deterministic, facts, missing, prepare
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


def run(
    recipe: Recipe,
    store: str | Path,
    *,
    place: Place | None = None,
    executor: Executor | None = None,
    report: Report = lambda event: None,
    command: str = "",
) -> int:
    """Run a recipe into a store, and return the number of the run there.

    Cells that the store has already are not run again, and cells that were stopped go on from their last batch. To
    continue a run is to call this again. ``command`` is what the report says to type.
    """
    place = place or Place()
    check(recipe, place)
    cells = list(recipe.cells())
    if not cells:
        raise ValueError(f"recipe {recipe.name!r} has nothing to run: no attack without malicious images.")
    with deterministic(place), Store(store) as opened:
        found = []
        for cell in cells:
            ready = prepare(cell, place, recipe.batches)
            found.append((cell, ready.key, ready.batches))
            del ready  # it holds a dataset and a model
        number = opened.begin(asdict(recipe), command, facts(place), [key for _, key, _ in found])
        unfinished = []
        for cell, key, batches in found:
            if opened.progress(key)[0] < batches:
                unfinished.append(cell)
            else:
                report(Event("done", key, cell, batches, batches))
    busy = 0

    def watch(event: Event) -> None:
        nonlocal busy
        busy += event.kind == "busy"
        report(event)

    (executor or InProcess(place)).run(unfinished, Path(store), recipe.batches, watch)
    if not busy:
        with Store(store) as opened:
            opened.end(number)
    return number
