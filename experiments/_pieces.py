"""Run named groups of recipes on CIFAR-10-C and the like, in pieces of minutes that continue where they stopped."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from medbn import bench, cli, gradients
from medbn.bench import Event, Recipe

Pieces = Mapping[str, Sequence[Recipe]]


def shuffled_recipe(name: str, data: str = "cifar10-c", seeds: tuple[int, ...] = (1,), **narrowing: Any) -> Recipe:
    """Return a recipe of the bench on a dataset with shuffled streams; ``narrowing`` is that of ``Recipe.narrow``."""
    return bench.recipes.get(name).narrow(data=[data], seeds=seeds, **narrowing)


def select_attacks(recipe: Recipe, *, objective: str | None = None, gradients: tuple[str, ...] = ()) -> Recipe:
    """Return a recipe with the attacks that have this objective and one of these gradients."""
    attacks = recipe.attacks
    if objective:
        attacks = tuple(attack for attack in attacks if attack.objective == objective)
    if gradients:
        attacks = tuple(attack for attack in attacks if attack.gradient in gradients)
    return replace(recipe, attacks=attacks)


def add_options(parser: argparse.ArgumentParser, store: str) -> None:
    """Add the options that ``run`` reads."""
    parser.add_argument("--store", type=Path, default=Path(store), help=f"default: {store}".replace("%", "%%"))
    parser.add_argument("--minutes", type=cli.positive_float, help="stop after this long")
    parser.add_argument("--jobs", type=cli.positive_int, default=1, help="processes (default: 1)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batches", type=cli.positive_int, help="of each stream, instead of what is reported")
    parser.add_argument("--seeds", type=cli.natural_int, nargs="+", help="of the streams: other batches and targets")
    parser.add_argument("--estimators", nargs="+", help="instead of all")
    parser.add_argument(
        "--gradients",
        nargs="+",
        choices=gradients.available(),
        metavar="G",
        help=f"of {', '.join(gradients.available())}",
    )
    parser.add_argument("--smoke", action="store_true", help="on digits and a small model, in seconds")
    parser.add_argument("--seal", type=Path, metavar="FILE", help="copy the results there at the end")


def run_benchmark(
    about: str | None, benchmarks: Mapping[str, Callable[[], Pieces]], store: str = "BENCHMARK.db"
) -> int:
    """Run the pieces of the benchmark that the command line names, and return the exit code.

    Args:
        about: the experiment's docstring, of which the first line is its description.
        benchmarks: functions that return the pieces of each.
        store: the file where results are kept by default; BENCHMARK stands for the name of the benchmark.
    """
    parser = cli.Parser(description=(about or "").split("\n")[0])
    parser.add_argument("benchmark", choices=benchmarks, metavar="BENCHMARK", help=", ".join(benchmarks))
    pieces = {name: make() for name, make in benchmarks.items()}
    listed = "; ".join(f"{name}: {', '.join(found)}" for name, found in pieces.items())
    parser.add_argument("pieces", nargs="*", metavar="PIECE", help=listed)
    add_options(parser, store)
    options = parser.parse_args()
    if options.store.name == "BENCHMARK.db":
        options.store = options.store.with_name(f"{options.benchmark}.db")
    return run(parser, options, pieces[options.benchmark])


def run(parser: argparse.ArgumentParser, options: argparse.Namespace, pieces: Pieces) -> int:
    """Run the named pieces, by default all of them in their order, and return the exit code."""
    unknown = [name for name in options.pieces if name not in pieces]
    if unknown:
        parser.error(f"pieces are {', '.join(pieces)}, not {unknown[0]}.")
    recipes = [narrow(recipe, options) for name in options.pieces or pieces for recipe in pieces[name]]
    place = bench.Place(device=cli.choose_device(options.device))
    executor = bench.Processes(place, options.jobs) if options.jobs > 1 else None
    began, batches = time.monotonic(), 0

    def print_progress(event: Event) -> None:
        nonlocal batches
        if event.kind == "batch":
            batches += 1
            if batches % 50 == 0:
                print(f"{time.monotonic() - began:5.0f} s  {batches} batches  {event.cell.label}", flush=True)

    done = bench.run(
        recipes,
        options.store,
        place=place,
        executor=executor,
        on_event=print_progress,
        seconds=60 * options.minutes if options.minutes else None,
        command=shlex.join(["python", f"experiments/{parser.prog}", *sys.argv[1:]]),
    )
    print(f"{batches} batches in {time.monotonic() - began:.0f} s; {'all is done' if done else 'to be continued'}.")
    if options.seal:
        options.seal.unlink(missing_ok=True)
        with bench.Store(options.store, create=False) as store:
            store.seal(options.seal)
    return 0


def narrow(recipe: Recipe, options: argparse.Namespace) -> Recipe:
    """Return the recipe with the changes that the options ask for."""
    recipe = recipe.smoke() if options.smoke else recipe
    seeds = tuple(options.seeds) if options.seeds else None
    recipe = recipe.narrow(batches=options.batches, estimators=options.estimators, seeds=seeds)
    if options.gradients and recipe.attacks:
        selected = select_attacks(recipe, gradients=tuple(options.gradients))
        recipe = selected if selected.attacks else recipe
    return recipe
