"""``medbn run``: an experiment, in resumable pieces."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import terminal

if TYPE_CHECKING:
    from ..bench import Event, Recipe


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "run",
        help="run experiments; running them again continues them",
        description="Run recipes of `medbn recipes`, or TOML files. Every finished batch is kept at once: stop it"
        " whenever you like, and run the same command to continue.",
    )
    parser.add_argument("recipes", nargs="+", metavar="RECIPE", help="a name of `medbn recipes`, or a .toml file")
    parser.add_argument("--store", default="medbn.db", metavar="FILE", help="where results go (default: medbn.db)")
    parser.add_argument("--smoke", action="store_true", help="the same on digits and the shipped model, in seconds")
    narrow = parser.add_argument_group("only a part of it")
    narrow.add_argument("--data", nargs="+", metavar="NAME", help="only these datasets of the recipe")
    narrow.add_argument(
        "--methods", nargs="+", metavar="M", help="tebn, tent, eta, eata, sar, sotta, sema, mdia, past, source"
    )
    narrow.add_argument("--estimators", nargs="+", metavar="E", help="mean, median, image_median, mad, mad_scaled")
    narrow.add_argument("--corruptions", nargs="+", metavar="C", help="gaussian_noise, fog, ...")
    narrow.add_argument("--limit", type=terminal.positive, metavar="N", help="only the first N corruptions")
    narrow.add_argument("--batches", type=terminal.positive, metavar="N", help="only N batches of each stream")
    narrow.add_argument(
        "--seed", type=terminal.natural, nargs="+", metavar="S", help="0 is the order of the file; others shuffle"
    )
    place = parser.add_argument_group("where")
    place.add_argument("--root", metavar="FOLDER", help="where datasets lie")
    place.add_argument("--weights", metavar="FILE", help="of the model, where the recipe has one")
    place.add_argument("--clean", metavar="DATA", help="clean images for EATA where the recipe has none: a folder")
    place.add_argument("--device", help="default: cuda where there is one, else cpu")
    place.add_argument("--jobs", type=terminal.positive, default=1, metavar="N", help="processes (default: 1)")
    place.add_argument("--threads", type=terminal.positive, metavar="N", help="torch's threads in each process")
    parser.add_argument(
        "--minutes", type=terminal.above_zero, metavar="M", help="stop after this long, to be continued"
    )
    parser.add_argument("--quiet", action="store_true", help="say nothing until the end")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Run and say what came out."""
    execute([_narrowed(name, options) for name in options.recipes], options, shlex.join(["medbn", *sys.argv[1:]]))
    if not options.quiet:
        print(f"look at it: medbn report {shlex.quote(str(options.store))}")


def _narrowed(name: str, options: argparse.Namespace) -> Recipe:
    from dataclasses import replace

    from .. import bench

    recipe = bench.recipes.get(name).narrowed(data=options.data)
    recipe = recipe.smoke() if options.smoke else recipe
    recipe = recipe.narrowed(
        methods=options.methods,
        estimators=options.estimators,
        corruptions=options.corruptions,
        limit=options.limit,
        batches=options.batches,
        seeds=tuple(options.seed) if options.seed else None,
        weights=options.weights,
    )
    if not options.clean:
        return recipe
    return replace(recipe, settings=tuple(s if s.clean else replace(s, clean=options.clean) for s in recipe.settings))


def execute(recipes: Sequence[Recipe], options: argparse.Namespace, command: str) -> None:
    """Run recipes under a progress bar, and print their headlines."""
    from .. import bench

    place = bench.Place(options.root, terminal.device(options.device), options.threads)
    executor = bench.Processes(place, options.jobs) if options.jobs > 1 else bench.InProcess(place)
    began = time.monotonic()
    seconds = 60.0 * options.minutes if options.minutes else None
    names = ", ".join(dict.fromkeys(recipe.name for recipe in recipes))
    progress = _Progress(recipes)
    with _watching(names, progress, options.quiet) as report:
        try:
            done = bench.run(
                recipes, options.store, place=place, executor=executor, report=report, seconds=seconds, command=command
            )
        except KeyboardInterrupt:
            print(f"\nstopped: {progress.so_far}; what is finished is kept. To continue: {command}", file=sys.stderr)
            raise SystemExit(130) from None
    if options.quiet:
        return
    from ..report import headline

    with bench.Store(options.store, create=False) as store:
        for name in dict.fromkeys(recipe.name for recipe in recipes):
            for title, columns, rows in headline(store, name):
                print(f"\n{title}")
                print(terminal.table(columns, rows, right=range(2, len(columns))))
    print(f"\n{names}: {time.monotonic() - began:.0f} s on {place.device}; results in {Path(options.store)}")
    if not done:
        print(f"not all of it is done: {progress.so_far}. To continue: {command}")


@contextmanager
def _watching(names: str, progress: _Progress, quiet: bool) -> Iterator[Callable[[Event], None]]:
    live = _Live()
    with terminal.bar(names, quiet=quiet, table=live.table) as bar:

        def report(event: Event) -> None:
            live.add(event)
            progress.add(event)
            note = progress.streams
            if event.kind == "batch":
                note += f" · {event.cell.label}: {_said(event.metrics)}"
            bar.update(progress.share, progress.cells, note)

        yield report
    if progress.busy and not quiet:
        print(f"{len(progress.busy)} streams are being worked on by another process.", file=sys.stderr)


class _Progress:
    """How far a run is."""

    def __init__(self, recipes: Sequence[Recipe]) -> None:
        self.cells = len({str(cell.describe()) for recipe in recipes for cell in recipe.cells()})
        self.done: dict[str, float] = {}
        """The share of each stream that is done, by its key."""
        self.busy: set[str] = set()
        self.batches = 0

    def add(self, event: Event) -> None:
        """Count what happened."""
        self.done[event.key] = event.batch / max(event.batches, 1)
        self.batches += event.kind == "batch"
        if event.kind == "busy":
            self.busy.add(event.key)

    @property
    def share(self) -> float:
        """Of all streams together, in streams."""
        return sum(self.done.values())

    @property
    def streams(self) -> str:
        """How many streams are done, in words."""
        return f"{sum(share >= 1 for share in self.done.values())} of {self.cells} streams"

    @property
    def so_far(self) -> str:
        """What a run that stops here has come to, in words."""
        return f"{self.streams} are done, {self.batches} batches in this run"


class _Live:
    """The numbers so far, by method and estimator, while a recipe runs: success rates or errors in per cent."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, str], dict[str, list[float]]] = {}

    def add(self, event: Event) -> None:
        """Count a batch."""
        if event.kind != "batch":
            return
        row = self.seen.setdefault((event.cell.method, event.cell.estimator), {})
        metrics, attack = event.metrics, event.cell.attack
        if attack is None:
            row.setdefault("error", []).append(metrics["wrong"] / metrics["images"])
            return
        if "benign" not in metrics:
            return  # a batch before the first that is attacked
        row.setdefault("error without", []).append(metrics["wrong_without"] / metrics["benign"])
        harm = metrics["hit"] if "hit" in metrics else metrics["wrong"] / metrics["benign"]
        row.setdefault(f"{attack.objective}, {attack.label}", []).append(harm)

    def table(self) -> terminal.Rows:
        """What to show now."""
        names = list(dict.fromkeys(name for row in self.seen.values() for name in row))
        rows = [
            [method, estimator, *(f"{100 * sum(row[n]) / len(row[n]):.1f}" if n in row else "" for n in names)]
            for (method, estimator), row in sorted(self.seen.items())
        ]
        return ["method", "estimator", *names], rows[:24]


def _said(metrics: dict[str, Any]) -> str:
    if "hit" in metrics:
        return "hit" if metrics["hit"] else "missed"
    if "benign" in metrics:
        before, after = (100 * metrics[name] / metrics["benign"] for name in ("wrong_without", "wrong"))
        return f"error {before:.0f} → {after:.0f} %"
    return f"error {100 * metrics.get('wrong', metrics.get('wrong_clean', 0)) / metrics['images']:.0f} %"
