"""``medbn demo``: the whole path in a minute, on real digits."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "demo",
        help="attack a small model on real digits, and look at the result; about a minute",
        description="Poison batches of real handwritten digits under three kinds of normalisation, and write a report.",
    )
    parser.add_argument("--full", action="store_true", help="all fifteen corruptions")
    parser.add_argument("--store", default="medbn-demo.db", metavar="FILE", help="default: medbn-demo.db")
    parser.add_argument("--device", default="cpu", help="default: cpu")
    parser.add_argument("--quiet", action="store_true", help="only the path of the report")
    parser.set_defaults(run=run, root=None, threads=None, jobs=1, minutes=None)


def run(options: argparse.Namespace) -> None:
    """Run the recipe, write the report, say where it is."""
    from .. import bench
    from ..data import corruptions
    from .report import write
    from .run import execute

    recipe = bench.recipes.get("demo")
    if options.full:
        recipe = replace(recipe, corruptions=corruptions.NAMES)
    attack = recipe.attacks[0]
    if not options.quiet:
        print(
            f"Somebody owns 40 of 200 handwritten digits in a batch and crafts them, {attack.steps} steps of"
            f" {attack.step_size * 255:.2g}/255,\nso that the other 160 are misread. Corruptions:"
            f" {', '.join(name.replace('_', ' ') for name in recipe.corruptions)}; one batch each.\n"
        )
    execute([recipe], options, shlex.join(["medbn", *sys.argv[1:]]))
    path = write(options.store, names=[recipe.name])
    assert path is not None
    print(f"report: {_clickable(path)}")


def _clickable(path: Path) -> str:
    return path.resolve().as_uri() if sys.stdout.isatty() else os.fspath(path)
