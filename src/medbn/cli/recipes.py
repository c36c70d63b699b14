"""``medbn recipes``: the named experiments, what they need, and how long they would take here."""

from __future__ import annotations

import argparse
from typing import Any

from . import terminal

NARROWING = "--data, --methods, --limit, --batches"
"""Options of ``medbn run``."""


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser("recipes", help="list the experiments, what they need and how long they take here")
    parser.add_argument("name", nargs="?", metavar="RECIPE", help="describe one of them")
    parser.add_argument("--root", metavar="FOLDER", help="where datasets lie")
    parser.add_argument("--device", help="the device to estimate times for")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Print a table, or one recipe."""
    from ..bench import recipes, time_estimate

    device = terminal.device(options.device)
    if options.name:
        describe(recipes.get(options.name), options, device)
        return
    speed = time_estimate.speed(device)
    rows = []
    for name in recipes.available():
        recipe = recipes.get(name)
        needs = " ".join(dict.fromkeys(s.data for s in recipe.settings))
        models = " ".join(dict.fromkeys(s.model for s in recipe.settings))
        here = "ready" if not _missing(recipe, options.root) else "-"
        took = time_estimate.spoken(time_estimate.seconds(recipe, speed))
        rows.append((name, here, needs, models, took, recipe.about.split(":")[0]))
    print(terminal.table(("recipe", "here", "data", "model", "time", "what"), rows))
    print(f"\ntimes are estimates for all of it on {device}; narrow with {NARROWING}.")
    print(
        "one of them: medbn recipes RECIPE · run it: medbn run RECIPE · in seconds, on digits: medbn run RECIPE --smoke"
    )


def describe(recipe: Any, options: argparse.Namespace, device: str) -> None:
    """Print one recipe, and what is missing for it."""
    from ..bench import time_estimate

    attacks = "; ".join(
        f"{a.objective}, {a.label} gradient, {a.steps} steps of {a.step_size * 255:.3g}/255" for a in recipe.attacks
    )
    sizes = dict.fromkeys(f"{s.malicious} of {s.batch_size}" for s in recipe.settings)
    items = [
        ("about", recipe.about),
        ("data", ", ".join(dict.fromkeys(f"{s.data} (severity {s.severity})" for s in recipe.settings))),
        ("models", ", ".join(dict.fromkeys(s.model for s in recipe.settings))),
        ("methods", ", ".join(recipe.methods)),
        ("estimators", ", ".join(recipe.estimators)),
        ("attacks", attacks or "none"),
        ("scenario", recipe.scenario if recipe.attacks else "no attack"),
        ("malicious", ", ".join(sizes)),
        ("corruptions", ", ".join(recipe.corruptions)),
        ("batches", str(recipe.batches or "all of each stream")),
        ("streams", str(len(list(recipe.cells())))),
        ("paper", ", ".join(recipe.published) or "-"),
        ("device", "any; a GPU for all but digits"),
        ("time", _time(time_estimate.seconds(recipe, time_estimate.speed(device)), device)),
    ]
    width = max(len(name) for name, _ in items)
    print("\n".join(f"{name:{width}}  {value}" for name, value in [("recipe", recipe.name), *items]))
    lacking = _missing(recipe, options.root)
    print(f"\nready: medbn run {options.name}" if not lacking else "\nmissing:\n  " + "\n  ".join(lacking))


def _time(seconds: float, device: str) -> str:
    from ..bench import time_estimate

    narrow = "" if seconds < time_estimate.LONG else f"; narrow it with {NARROWING}, or take a faster --device"
    return f"{time_estimate.spoken(seconds)} on {device} (estimate){narrow}"


def _missing(recipe: Any, root: str | None) -> list[str]:
    from ..bench.runner import missing

    found: dict[str, None] = {}
    for setting in recipe.settings:
        found.update(dict.fromkeys(missing(setting, recipe.methods, root)))
    return list(found)
