"""``medbn run``: run experiments, in pieces that can be continued."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ._arguments import (
    UNFINISHED,
    add_device,
    add_import,
    add_root,
    choose_device,
    image_size,
    natural_int,
    positive_float,
    positive_int,
    shard,
)
from ._completion import complete, corruption_names, dataset_names, estimator_names, method_names, recipe_names
from ._run_progress import RunProgress, show_run
from ._terminal import format_table

if TYPE_CHECKING:
    from ..bench import Executor, Place, Recipe

SUMMARY = "run experiments; the same command again continues them"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        "Run recipes of `medbn recipes`, or TOML files. Every finished batch is stored at once: stop a run at any time,"
        "\nand run the same command again to continue it."
    )
    parser.epilog = (
        "examples:\n"
        "  medbn run targeted-instant --smoke\n"
        "  medbn run targeted-instant --data cifar10-c --methods tebn tent --batches 2\n"
        "  medbn run my-recipe.toml --store my-results.db --jobs 4"
    )
    recipes = parser.add_argument(
        "recipes", nargs="+", metavar="RECIPE", help="a name of `medbn recipes`, or a .toml file"
    )
    complete(recipes, recipe_names)
    parser.add_argument(
        "--store", metavar="FILE", help="file for the results (default: medbn.db; of a shard, medbn-3-of-16.db)"
    )
    parser.add_argument("--smoke", action="store_true", help="a short form on images and a model that ship with medbn")
    parser.add_argument(
        "--minutes", type=positive_float, metavar="M", help="stop after M minutes; the same command continues"
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors and what is left")

    part = parser.add_argument_group("run only a part")
    data = part.add_argument("--data", nargs="+", metavar="NAME", help="only these datasets of the recipe, or a folder")
    methods = part.add_argument("--methods", nargs="+", metavar="M", help="such as tebn, tent, sotta")
    estimators = part.add_argument("--estimators", nargs="+", metavar="E", help="such as mean, median, image_median")
    corruptions = part.add_argument(
        "--corruptions", nargs="+", metavar="C", help="such as gaussian_noise, fog; or none"
    )
    part.add_argument("--limit", type=positive_int, metavar="N", help="only the first N corruptions")
    part.add_argument("--batches", type=positive_int, metavar="N", help="only N batches of each stream")
    part.add_argument("--size", type=image_size, metavar="HEIGHTxWIDTH", help="scale images for segmentation to this")
    part.add_argument(
        "--seed", type=natural_int, nargs="+", metavar="S", help="0 is the order of the file; others shuffle"
    )
    complete(data, dataset_names)
    complete(methods, method_names)
    complete(estimators, estimator_names)
    complete(corruptions, corruption_names)

    spread = parser.add_argument_group("several machines", "joined by `medbn merge`; see docs/scale.md")
    spread.add_argument(
        "--executor", choices=("local", "ray"), default="local", help="local (default), or a Ray cluster (medbn[ray])"
    )
    spread.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="of the Ray cluster (default: $RAY_ADDRESS, or this machine alone)",
    )
    spread.add_argument(
        "--gpus-per-task", type=positive_float, metavar="F", help="with ray: the part of a GPU that a stream needs"
    )
    spread.add_argument("--shard", type=shard, metavar="K/N", help="run the K-th of N parts, such as 3/16")

    place = parser.add_argument_group("data and machine")
    add_root(place)
    place.add_argument("--weights", metavar="FILE", help="weights of the model, for a recipe with one model")
    place.add_argument("--clean", metavar="DATA", help="folder of clean images for EATA, if the recipe names none")
    add_import(place)
    add_device(place)
    place.add_argument("--jobs", type=positive_int, metavar="N", help="processes (default: 1; with ray, all it has)")
    place.add_argument("--threads", type=positive_int, metavar="N", help="torch's threads in each process")


def run(options: argparse.Namespace) -> int:
    """Run the recipes and print their headline numbers; return the exit code."""
    if options.store is None:
        options.store = "medbn.db" if options.shard is None else "medbn-{}-of-{}.db".format(*options.shard)
    recipes = [_narrow_recipe(name, options) for name in options.recipes]
    finished = execute(recipes, options, shlex.join(["medbn", *sys.argv[1:]]))
    if not options.quiet:
        print(f"show it as a page: medbn report {shlex.quote(str(options.store))}")
    return 0 if finished else UNFINISHED


def execute(recipes: Sequence[Recipe], options: argparse.Namespace, command: str) -> bool:
    """Run recipes while showing progress, print their headline numbers, and return whether everything is finished.

    What is left is said in any case, on stderr.

    Args:
        recipes: what to run.
        options: ``store``, ``root``, ``device``, ``threads``, ``jobs``, ``minutes``, ``quiet``, ``shard``,
            ``executor``, ``address``, ``gpus_per_task``.
        command: the command that continues the run.
    """
    from .. import bench

    place, executor = _choose_executor(options)
    began = time.monotonic()
    seconds = 60.0 * options.minutes if options.minutes else None
    names = list(dict.fromkeys(recipe.name for recipe in recipes))
    shard = bench.Shard(*options.shard) if options.shard else None
    progress = RunProgress(recipes, shard)
    with show_run(", ".join(names), progress, options.quiet) as on_event:
        try:
            finished = bench.run(
                recipes,
                options.store,
                place=place,
                executor=executor,
                on_event=on_event,
                seconds=seconds,
                command=command,
                shard=shard,
            )
        except KeyboardInterrupt:
            print(
                f"\nstopped: {progress.summary}; finished batches are stored. To continue: {command}", file=sys.stderr
            )
            raise SystemExit(130) from None
        except bench.LostClaimError as error:
            print(error, file=sys.stderr)
            finished = False
    if not options.quiet:
        _print_headlines(options.store, names)
        seconds = time.monotonic() - began
        where = f"ray ({executor.place.device})" if isinstance(executor, bench.Ray) else place.device
        print(f"\n{', '.join(names)}: {seconds:.0f} s on {where}; results in {Path(options.store)}", flush=True)
    if not finished:
        print(f"not finished: {progress.summary}. To continue: {command}", file=sys.stderr)
    return finished


def _choose_executor(options: argparse.Namespace) -> tuple[Place, Executor]:
    """Return the place of this process, and what runs the cells."""
    from .. import bench

    if options.executor == "ray":
        device = options.device or choose_device(None)  # this machine need not have the GPUs of the cluster
        place = bench.Place(options.root, device, options.threads)
        executor = bench.Ray(place, address=options.address, jobs=options.jobs, gpus=options.gpus_per_task)
        return bench.Place(options.root, "cpu", options.threads), executor
    for name in ("address", "gpus_per_task"):
        if getattr(options, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} is for --executor ray.")
    place = bench.Place(options.root, choose_device(options.device), options.threads)
    return place, bench.Processes(place, options.jobs) if (options.jobs or 1) > 1 else bench.InProcess(place)


def _narrow_recipe(name: str, options: argparse.Namespace) -> Recipe:
    """Return a recipe with the changes that the options ask for."""
    from dataclasses import replace

    from .. import bench

    recipe = bench.recipes.get(name, imports=options.imports).narrow(data=options.data)
    recipe = recipe.smoke() if options.smoke else recipe
    recipe = recipe.narrow(
        methods=options.methods,
        estimators=options.estimators,
        corruptions=options.corruptions,
        limit=options.limit,
        batches=options.batches,
        seeds=tuple(options.seed) if options.seed else None,
        weights=options.weights,
        size=options.size,
    )
    if not options.clean:
        return recipe
    return replace(recipe, settings=tuple(s if s.clean else replace(s, clean=options.clean) for s in recipe.settings))


def _print_headlines(path: str, names: Sequence[str]) -> None:
    from ..bench import Store
    from ..report import headline

    with Store(path, create=False) as store:
        for name in names:
            for title, columns, rows in headline(store, name):
                print(f"\n{title}")
                print(format_table(columns, rows, right=range(2, len(columns))))
