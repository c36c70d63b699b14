"""``medbn demo``: attack a small model and write a report, or follow changes; in about a minute."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ._arguments import UNFINISHED

if TYPE_CHECKING:
    from ..bench import Recipe

SUMMARY = "attack a small model on real digits and write a report; about a minute"
RECIPES = {"attack": "demo", "segmentation": "demo-segmentation"}
"""The recipe of each demonstration that has one."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        "Poison batches of real handwritten digits while a model adapts to them, with BatchNorm, MedBN and image_median"
        " in turn,\nand write a report. With 'segmentation', the model labels every pixel of scenes of digits.\n"
        "With 'changes', follow digits that change, while an attacker feigns changes."
    )
    parser.epilog = "examples:\n  medbn demo\n  medbn demo segmentation\n  medbn demo changes\n  medbn demo --full"
    parser.add_argument(
        "what",
        nargs="?",
        choices=(*RECIPES, "changes"),
        default="attack",
        metavar="DEMO",
        help="attack (default), segmentation or changes",
    )
    parser.add_argument("--full", action="store_true", help="all fifteen corruptions")
    parser.add_argument(
        "--store", metavar="FILE", help="default: medbn-demo.db, or medbn-demo-segmentation.db for segmentation"
    )
    parser.add_argument("--device", default="cpu", help="default: cpu")
    parser.add_argument("--quiet", action="store_true", help="print only the path of the report")
    parser.set_defaults(root=None, threads=None, jobs=1, minutes=None, shard=None)
    parser.set_defaults(executor="local", address=None, gpus_per_task=None)


def run(options: argparse.Namespace) -> int:
    """Run a recipe and write its report, or run the stream that changes; return the exit code."""
    if options.what == "changes":
        if options.full or options.store:
            raise ValueError("the demo of changes is one stream that is not stored; leave --full and --store out.")
        from ._arguments import choose_device
        from ._demo_changes import print_stream

        print_stream(choose_device(options.device), options.quiet)
        return 0
    from .. import bench
    from ..data import corruptions
    from .report import write
    from .run import execute

    recipe = bench.recipes.get(RECIPES[options.what])
    options.store = options.store or f"medbn-{recipe.name}.db"
    if options.full:
        recipe = replace(recipe, corruptions=corruptions.NAMES)
    if not options.quiet:
        print(f"{_describe(recipe)}\n")
    finished = execute([recipe], options, shlex.join(["medbn", *sys.argv[1:]]))
    path = write(options.store, names=[recipe.name])
    assert path is not None
    print(f"report: {_link(path)}")
    return 0 if finished else UNFINISHED


def _describe(recipe: Recipe) -> str:
    """Return what the demo does, in two lines."""
    setting, attack = recipe.settings[0], recipe.attacks[0]
    size, own = setting.batch_size, setting.malicious
    steps = f"in {attack.steps} steps of {attack.step_size * 255:.2g}/255"
    names = ", ".join(name.replace("_", " ") for name in recipe.corruptions)
    batches = "one batch" if recipe.batches == 1 else f"{recipe.batches} batches"
    if setting.dense:
        what = f"An attacker owns {own} of the {size} scenes in a batch and changes it, {steps},"
        aim = f"so that the model mislabels pixels of the other {size - own}."
    else:
        what = f"An attacker owns {own} of the {size} handwritten digits in a batch and changes them, {steps},"
        aim = f"so that the model misclassifies the other {size - own}."
    return f"{what}\n{aim} Corruptions: {names}; {batches} each."


def _link(path: Path) -> str:
    """Return a path as a terminal makes it clickable, or as it is for a program that reads our output."""
    return path.resolve().as_uri() if sys.stdout.isatty() else os.fspath(path)
