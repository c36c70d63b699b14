"""What was run, how long it took, and the commands that repeat it."""

from __future__ import annotations

import time

from ...bench import UNCORRUPTED, Attack, Cell, Results
from ..document import Facts, Part, Table, Text, Value
from .labels import corruption_label, estimator_label, order_estimators


def time_parts(results: Results) -> list[Part]:
    """Return the time that was spent on each estimator, for attacks and for the rest."""
    rows: list[list[Value]] = []
    for estimator in order_estimators(set(results.values(lambda cell: cell.estimator))):
        one = results.select(lambda cell, estimator=estimator: cell.estimator == estimator)  # type: ignore[misc]
        attack, rest = one.seconds()
        crafted = sum(1 for batch in one.batches if "attack_s" in batch and not batch.get("shared"))
        per_attack = round(attack / crafted, 2) if crafted else None
        total = len(one.batches)
        rows.append(
            [estimator_label(estimator), total, crafted, per_attack, round(rest / total, 3), round(attack + rest)]
        )
    columns = ["normalisation", "batches", "of them crafted", "attack, s", "prediction and adaptation, s", "all, s"]
    return [
        Table("Time spent", columns, rows, "A poisoned batch that is the same for several methods is crafted once.")
    ]


def run_parts(results: Results) -> list[Part]:
    """Return the facts of the last run, and the commands of all runs."""
    recipe, last = results.recipe, results.runs[-1]
    attacks = {result.cell.attack for result in results.cells if result.cell.attack}
    settings = {result.cell.setting for result in results.cells}
    in_order = sorted(settings, key=lambda s: (s.malicious, s.batch_size, s.owned))
    sizes = dict.fromkeys(s.attacker for s in in_order)
    items = [
        ("recipe", recipe["name"]),
        ("data and model", "; ".join(sorted({_describe_data(result.cell) for result in results.cells}))),
        ("batches", f"{len(results.batches):,} in {len(results.cells):,} streams"),
        ("malicious images", ", ".join(sizes)),
        ("corruptions", ", ".join(map(corruption_label, results.values(lambda cell: cell.corruption)))),
        ("attacks", "; ".join(sorted(map(_describe, attacks))) or "none"),
        ("scenario", recipe["scenario"] if attacks else "no attack"),
        ("seeds", ", ".join(str(seed) for seed in sorted(results.values(lambda cell: cell.seed)))),
        ("device", "; ".join(sorted({batch.get("device", "unknown") for batch in results.batches}))),
        ("versions", f"medbn {last.facts['medbn']}, torch {last.facts['torch']}, Python {last.facts['python']}"),
        ("last run", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(last.began))),
    ]
    if recipe.get("fuse"):
        items.append(("kernels", "BatchNorm and the ReLU behind it in one"))
    commands = dict.fromkeys(run.command for run in results.runs if run.command)
    return [Facts("Facts", items), *(Text(command, code=True) for command in commands)]


def _describe_data(cell: Cell) -> str:
    """Return the dataset, the severity of its corruptions if it has any, and the model."""
    severity = "" if cell.corruption == UNCORRUPTED else f" (severity {cell.setting.severity})"
    return f"{cell.dataset}{severity}, {cell.setting.model}"


def _describe(attack: Attack) -> str:
    """Return the options of an attack that decide how strong it is."""
    return (
        f"{attack.objective}, {attack.label} gradient, {attack.steps} steps of {attack.step_size * 255:.3g}/255,"
        f" ε {attack.epsilon:.3g}"
    )
