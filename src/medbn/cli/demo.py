"""``medbn demo``: attack a small model on real digits and write a report, or follow changes; in about a minute."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from ._arguments import UNFINISHED

SUMMARY = "attack a small model on real digits and write a report; about a minute"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        "Poison batches of real handwritten digits while a model adapts to them, with BatchNorm, MedBN and image_median"
        " in turn,\nand write a report. With 'changes', follow digits that change, while an attacker feigns changes."
    )
    parser.add_argument(
        "what", nargs="?", choices=("attack", "changes"), default="attack", help="which demonstration; default: attack"
    )
    parser.add_argument("--full", action="store_true", help="all fifteen corruptions")
    parser.add_argument("--store", default="medbn-demo.db", metavar="FILE", help="default: medbn-demo.db")
    parser.add_argument("--device", default="cpu", help="default: cpu")
    parser.add_argument("--quiet", action="store_true", help="print the path of the report and nothing else")
    parser.set_defaults(root=None, threads=None, jobs=1, minutes=None)


def run(options: argparse.Namespace) -> int:
    """Run the recipe ``demo`` and write its report, or run the stream that changes; return the exit code."""
    if options.what == "changes":
        from ._arguments import choose_device
        from ._demo_changes import print_stream

        print_stream(choose_device(options.device), options.quiet)
        return 0
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
            f"An attacker owns 40 of the 200 handwritten digits in a batch and changes them, in {attack.steps} steps of"
            f" {attack.step_size * 255:.2g}/255,\nso that the model misclassifies the other 160. Corruptions:"
            f" {', '.join(name.replace('_', ' ') for name in recipe.corruptions)}; one batch each.\n"
        )
    finished = execute([recipe], options, shlex.join(["medbn", *sys.argv[1:]]))
    path = write(options.store, names=[recipe.name])
    assert path is not None
    print(f"report: {_link(path)}")
    return 0 if finished else UNFINISHED


def _link(path: Path) -> str:
    """Return a path as a terminal makes it clickable, or as it is for a program that reads our output."""
    return path.resolve().as_uri() if sys.stdout.isatty() else os.fspath(path)
