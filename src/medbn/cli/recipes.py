"""``medbn recipes``: list the experiments, what they need, and how long they would take on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ._arguments import add_import, add_root, choose_device, positive_int
from ._completion import complete, recipe_names
from ._terminal import format_table

if TYPE_CHECKING:
    from ..bench import Recipe, Setting

SUMMARY = "list the experiments, what they need and how long they take on this machine"
SHORTENING = "--data, --methods, --limit, --batches"
"""Options of ``medbn run`` that make a run shorter."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.epilog = "examples:\n  medbn recipes\n  medbn recipes targeted-instant\n  medbn recipes --plan 8"
    complete(parser.add_argument("name", nargs="?", metavar="RECIPE", help="describe this recipe"), recipe_names)
    add_import(parser)
    add_root(parser)
    parser.add_argument(
        "--plan", type=positive_int, metavar="GPUS", help="what recipes take on so many GPUs, from measured seconds"
    )
    parser.add_argument("--device", help="estimate times for this device (default: cuda where there is one, else cpu)")


def run(options: argparse.Namespace) -> None:
    """Print all recipes as a table, or the description of one."""
    from ..bench import import_modules, recipe_requirements, recipes, time_estimate

    if options.plan:
        names = [options.name] if options.name else recipes.available()
        print_plan([recipes.get(name, imports=options.imports) for name in names], options.plan)
        return
    device = choose_device(options.device)
    import_modules(options.imports)
    if options.name:
        describe(recipes.get(options.name), options, device)
        return
    speed = time_estimate.calibrate(device)
    rows = []
    for name in recipes.available():
        recipe = recipes.get(name)
        needs = " ".join(dict.fromkeys(s.data for s in recipe.settings))
        models = " ".join(dict.fromkeys(s.model for s in recipe.settings))
        ready = "yes" if not recipe_requirements(recipe, options.root) else "-"
        duration = time_estimate.describe_duration(time_estimate.estimate_seconds(recipe, speed), device, speed)
        rows.append((name, ready, needs, models, duration, recipe.about.split(":")[0]))
    print(format_table(("recipe", "ready", "data", "model", "time", "what"), rows))
    print(f"\ntimes are estimates for the whole recipe on {device}; shorten a run with {SHORTENING}.")
    print("describe one: medbn recipes RECIPE · run it: medbn run RECIPE · in seconds, on small images: ... --smoke")


def print_plan(chosen: Sequence[Recipe], gpus: int) -> None:
    """Print what recipes take on a number of GPUs."""
    from ..bench import costs, plan

    rows = []
    for recipe in chosen:
        one = plan(recipe, gpus)
        tables = ", ".join(recipe.published) or "-"
        hours = [f"{seconds / 3600:.2f}" for seconds in (one.gpu_seconds, one.seconds, one.longest)]
        rows.append((recipe.name, tables, str(one.streams), str(one.tasks), *hours, f"{100 * one.measured:.0f} %"))
    titles = (
        "recipe",
        "tables of the paper",
        "streams",
        "tasks",
        "GPU hours",
        f"hours on {gpus}",
        "longest",
        "measured",
    )
    print(format_table(titles, rows))
    print(
        f"\nhours are those of {costs.GPU}, from the seconds per batch that ship with medbn; what was not measured with"
        "\nthe same model, method and estimator is scaled from what was. A task runs on one GPU: no run is shorter than"
        "\nthe longest. Starting a task, and reading its data, is not included. docs/scale.md has more."
    )


def describe(recipe: Recipe, options: argparse.Namespace, device: str) -> None:
    """Print one recipe, and the commands that get what is missing for it."""
    from ..bench import UNCORRUPTED, recipe_requirements

    attacks = "; ".join(
        f"{a.objective}, {a.label} gradient, {a.steps} steps of {a.step_size * 255:.3g}/255" for a in recipe.attacks
    )
    corrupted = recipe.corruptions != (UNCORRUPTED,)
    sizes = dict.fromkeys(s.attacker for s in recipe.settings)
    items = [
        ("about", recipe.about),
        ("data", ", ".join(dict.fromkeys(_describe_data(s, corrupted) for s in recipe.settings))),
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
        ("device", "any; a GPU for all but digits and scenes"),
        ("time", _time(recipe, device)),
    ]
    width = max(len(name) for name, _ in items)
    print("\n".join(f"{name:{width}}  {value}" for name, value in [("recipe", recipe.name), *items]))
    missing = recipe_requirements(recipe, options.root)
    print(f"\nready: medbn run {options.name}" if not missing else "\nmissing:\n  " + "\n  ".join(missing))


def _describe_data(setting: Setting, corrupted: bool) -> str:
    """Return the dataset with the severity of its corruptions, or the size at which its images are read."""
    notes = [f"severity {setting.severity}"] if corrupted else []
    notes += [f"{setting.size[0]} × {setting.size[1]} px"] if setting.size else []
    return f"{setting.data} ({', '.join(notes)})" if notes else setting.data


def _time(recipe: Recipe, device: str) -> str:
    from ..bench import time_estimate

    speed = time_estimate.calibrate(device)
    seconds = time_estimate.estimate_seconds(recipe, speed)
    duration = time_estimate.describe_duration(seconds, device, speed)
    if seconds > time_estimate.LONGEST:
        return f"{duration} (estimate); shorten it with {SHORTENING}"
    return f"{duration} on {device} (estimate)"
