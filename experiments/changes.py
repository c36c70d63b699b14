"""Does `past` find changes, what does that cost, and what do attackers do to it? With ``changes="detect"``.

    python experiments/changes.py [PART ...] --json changes.json --minutes 9 [--data cifar10-c]

errors     all corruptions in turn, never reset, for 50, 10, 4 and 1 batches each, without attack
alarms     false alarms in streams of one corruption, by the first layer, on which the choice depends: without attack,
           with 20 % checkerboards, white or grey images, and with 20 % crafted on alternating sides of the memory
targeted   a fifth of every batch is crafted to hit a target, from the state of clean batches, with three gradients
poison     a fifth of six batches each of three corruptions is crafted to raise the error, and stays
owned      a share of the batches is the attacker's: checkerboards, white and grey images in calls of a batch, of one
           image and of many batches, and batches crafted with three gradients
choice     a fifth of every batch is crafted to hide changes, or to have the wrong memory taken up
fallbacks  what other options cost: errors, and targets that are hit
order      errors once more, in another order of the corruptions

The parts are in order of importance, and without names all of them run. With --minutes it stops after so long, with
exit code 3, and the same command continues. Errors are in per cent; intervals are 95 %, by a bootstrap over batches,
and Wilson's for shares. ``--data digits`` needs no download.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import torch
from torch import nn

from _change_cells import Cell, Row, Served, Within, first_layer, make_adapter, own_batches, poison, stream
from _cifar import resnet26
from medbn import attacks, cli, models
from medbn.attacks import DIA, Indiscriminate, Targeted
from medbn.bench import Place, deterministic, machine_facts
from medbn.bench.intervals import wilson
from medbn.data import corruptions

DETECT: dict[str, Any] = {"changes": "detect"}
OURS = "image_median@0.5"
METHODS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "TeBN": ("tebn", "mean", {}),
    "past": ("past", OURS, {"changes": None}),
    "detection": ("past", OURS, DETECT),
    "fallback 0.3": ("past", OURS, DETECT | {"fallback": 0.3}),
    "fallback 0": ("past", OURS, DETECT | {"fallback": 0.0}),
    "fallback 1": ("past", OURS, DETECT | {"fallback": 1.0}),
    "one memory": ("past", OURS, DETECT | {"memories": 1}),
}
GRADIENTS = ("exact", "straight_through", "smooth")
IMAGES = ("checkerboard", "white", "grey")
POISONED = ("gaussian_noise", "fog", "jpeg_compression")
"""As in docs/results/cifar10-c.md."""


def main() -> None:
    parser = cli.Parser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("parts", nargs="*", help=f"{', '.join(PARTS)}; default: all", metavar="PART")
    parser.add_argument("--data", default="cifar10-c", choices=("cifar10-c", "digits"))
    parser.add_argument(
        "--batches", type=cli.positive_int, nargs="+", default=[50, 10, 4, 1], help="of each corruption"
    )
    parser.add_argument("--size", type=cli.positive_int, help="images in a batch; default: 200, and 100 for digits")
    parser.add_argument("--corruptions", nargs="+", default=list(corruptions.NAMES), metavar="C")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), metavar="M", help=", ".join(METHODS))
    parser.add_argument("--shares", type=float, nargs="+", default=[0.1, 0.3, 0.5], help="of owned batches")
    parser.add_argument("--steps", type=cli.natural_int, default=100, help="of crafted batches; 0 leaves them out")
    parser.add_argument("--gradients", nargs="+", default=list(GRADIENTS), choices=GRADIENTS, metavar="G")
    parser.add_argument("--root", type=Path, help="the data folder")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep what is measured, and continue from it")
    parser.add_argument("--minutes", type=cli.positive_float, help="stop after this long")
    options = parser.parse_args()
    for name, names in ((options.parts, PARTS), (options.methods, METHODS)):
        for each in name:
            if each not in names:
                raise ValueError(f"there is no {each!r}; there are {', '.join(names)}.")
    options.size = options.size or {"digits": 100}.get(options.data, 200)
    if options.minutes and not options.json:
        raise ValueError("--minutes needs --json FILE, from which the same command continues.")
    end = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
    device = cli.choose_device(options.device)
    digits = options.data == "digits"
    model = models.get("resnet-small", weights="shipped").to(device) if digits else resnet26(options.root, device)
    place = Place(device=options.device)
    record = read_record(options, machine_facts(place))
    print(f"{record['facts']['device']}, torch {record['facts']['torch']}; {options.data}, batches of {options.size}")
    with deterministic(place):
        finished = all(
            run(cell, options, record, end) for part in options.parts or PARTS for cell in PARTS[part](model, options)
        )
    if not finished:
        print(f"not finished; the same command continues: {options.json}")
        sys.exit(3)


# --- what is measured -------------------------------------------------------------------------------------------------


def errors(model: nn.Module, options: argparse.Namespace, seed: int = 0, part: str = "errors") -> Iterator[Cell]:
    """Return streams without attack."""
    for every, name in product(options.batches, [m for m in ("TeBN", "past", "detection") if m in options.methods]):
        make = partial(make_adapter, model, METHODS[name], options.size)
        yield Cell(part, f"every {every}, {name}", lambda make=make: Served(make), every, seed)  # type: ignore[misc]


def alarms(model: nn.Module, options: argparse.Namespace) -> Iterator[Cell]:
    """Return streams of one corruption each, of the first layer."""
    make = partial(make_adapter, first_layer(model), METHODS["detection"], options.size)
    size, most = options.size, max(options.batches)
    yield Cell("alarms", "none", lambda: Served(make, alone=True), most)
    ways = {start: DIA(steps=0, start=start) for start in IMAGES}
    if options.steps:
        for side in ("above", "below", "crowded"):
            objective = attacks.objectives.FalseAlarm(side)
            ways[f"crafted, {side}"] = DIA(objective, steps=options.steps, step_size=0.1, start="clean")
    for name, attack in ways.items():
        every = most if name in IMAGES else min(most, 14)
        yield Cell("alarms", name, lambda attack=attack: poison(make, attack, size, alone=True), every)  # type: ignore[misc]


def targeted(model: nn.Module, options: argparse.Namespace) -> Iterator[Cell]:
    """Return streams of which every batch is attacked within itself."""
    yield from _targeted(model, options, ["detection"], sorted(options.batches)[len(options.batches) // 2])


def _targeted(model: nn.Module, options: argparse.Namespace, names: list[str], every: int) -> Iterator[Cell]:
    malicious = slice(options.size - options.size // 5, options.size)
    for name, gradient in product(names, options.gradients if options.steps else ()):
        make = partial(make_adapter, model, METHODS[name], options.size)
        attack = DIA(Targeted(), steps=options.steps, gradient=gradient)
        made = partial(Within, make, attack, malicious)
        yield Cell("targeted", f"every {every}, {gradient}, {name}", made, every)


def poisoned(model: nn.Module, options: argparse.Namespace) -> Iterator[Cell]:
    """Return batches of one corruption, a fifth of all crafted to raise the error."""
    names = [n for n in POISONED if n in options.corruptions] or options.corruptions
    for name, gradient in product(_remembering(options), options.gradients if options.steps else ()):
        make = partial(make_adapter, model, METHODS[name], options.size)
        attack = DIA(Indiscriminate(), steps=options.steps, gradient=gradient)
        made = partial(poison, make, attack, options.size, alone=True)
        yield Cell("poison", f"{gradient}, {name}", made, min(6, max(options.batches)), corruptions=names)


def owned(model: nn.Module, options: argparse.Namespace) -> Iterator[Cell]:
    """Return streams of which a share of the batches is the attacker's."""
    every = sorted(options.batches)[len(options.batches) // 2]
    ways: list[tuple[str, DIA, dict[str, Any]]] = []
    if options.steps:
        crafted = {g: DIA(Indiscriminate(), steps=options.steps, gradient=g, start="clean") for g in options.gradients}
        ways += [(gradient, attack, {}) for gradient, attack in crafted.items()]
    boards, *others = [(start, DIA(Indiscriminate(), steps=0, start=start), dict[str, Any]()) for start in IMAGES]
    ways += [boards, *others]
    ways += [(f"{boards[0]}, one image a call", boards[1], {"call_size": 1})]
    ways += [(f"{boards[0]}, at the start", boards[1], {"at": "start", "period": every})]
    ways += [(f"{boards[0]}, huge calls", boards[1], {"at": "start", "period": 3 * every, "call_size": 10**6})]
    for (way, attack, where), share, name in product(ways, options.shares, _remembering(options)):
        make = partial(make_adapter, model, METHODS[name], options.size)
        made = partial(own_batches, make, attack, share, **where)
        yield Cell("owned", f"{way}, share {share:g}, {name}", made, every)


def choice(model: nn.Module, options: argparse.Namespace) -> Iterator[Cell]:
    """Return streams of which a fifth of every batch is crafted against the choice of a memory."""
    every = sorted(options.batches)[(len(options.batches) - 1) // 2]
    for kind in ("hidden_change", "wrong_memory") if options.steps else ():
        make = partial(make_adapter, model, METHODS["detection"], options.size)
        objective = attacks.objectives.get(kind)()
        attack = DIA(objective, steps=options.steps, step_size=0.1, start="clean")
        made = partial(poison, make, attack, options.size, alone=False)
        yield Cell("choice", f"every {every}, {kind}", made, every)


def fallbacks(model: nn.Module, options: argparse.Namespace) -> Iterator[Cell]:
    """Return streams without attack and attacked within batches, for the other rows."""
    names = [name for name in list(METHODS)[3:] if name in options.methods]
    for every, name in product(sorted(options.batches)[:2], names):
        make = partial(make_adapter, model, METHODS[name], options.size)
        yield Cell("errors", f"every {every}, {name}", lambda make=make: Served(make), every)  # type: ignore[misc]
    yield from _targeted(model, options, [n for n in names if "fallback" in n], min(options.batches))


def _remembering(options: argparse.Namespace) -> list[str]:
    return [name for name in ("detection", "past") if name in options.methods]


PARTS: dict[str, Callable[[nn.Module, argparse.Namespace], Iterator[Cell]]] = {
    "errors": errors,
    "alarms": alarms,
    "targeted": targeted,
    "poison": poisoned,
    "owned": owned,
    "choice": choice,
    "fallbacks": fallbacks,
    "order": partial(errors, seed=1, part="order"),
}


# --- run and summarise ------------------------------------------------------------------------------------------------


def run(cell: Cell, options: argparse.Namespace, record: dict[str, Any], end: float) -> bool:
    """Measure a cell unless it has been, and print its summary; return whether there was time for all of it.

    The state of an unfinished cell is in a file beside that of the record.
    """
    key = f"{cell.part}: {cell.name}"
    if key not in record["cells"]:
        served, rows = cell.make(), []
        partly = options.json and options.json.with_suffix(".state.pt")
        if partly and partly.exists():
            kept = torch.load(partly, weights_only=True)
            if kept["key"] == key:
                rows = kept["rows"]
                served.load(kept["state"])
        for images, labels, position in islice(stream(options, cell), len(rows), None):
            if time.monotonic() > end:
                torch.save({"key": key, "state": served.state(), "rows": rows}, partly)
                return False
            rows.append(served.step(images, labels, position))
        record["cells"][key] = rows
        if options.json:
            write_record(options.json, record)
    summary = {name: value for name, value in summarise(record, cell).items() if value is not None}
    print(f"{key}; {', '.join(f'{name}: {value}' for name, value in summary.items())}", flush=True)
    return True


def summarise(record: dict[str, Any], cell: Cell) -> Row:
    """Return means with intervals, and counts."""
    rows = record["cells"][f"{cell.part}: {cell.name}"]
    first = [row for row in rows if row["position"] == 0]
    later = [row for row in rows if row["position"] > 0]
    result: Row = {"n": len(rows)}
    for name in ("error", "without", "added"):
        if name in rows[0] and cell.part != "alarms":  # the first layer predicts nothing
            result[name] = mean_and_interval([row[name] for row in rows])
            result[f"{name}, first"] = mean_and_interval([row[name] for row in first])
            if cell.part == "poison":
                result[f"{name}, later"] = mean_and_interval([row[name] for row in later])
    other = record["cells"].get(f"{cell.part}: every {cell.every}, TeBN", [])
    if len(other) == len(rows):
        result["more than TeBN"] = mean_and_interval(
            [a["error"] - b["error"] for a, b in zip(rows, other, strict=True)]
        )
    for kind in ("", " under attack"):
        if f"declared{kind}" in rows[0]:
            found = [row[f"declared{kind}"] + row[f"returned{kind}"] for row in rows]
            counts = [
                sum(n for n, row in zip(found, rows, strict=True) if (row["position"] == 0) == at)
                for at in (True, False)
            ]
            result[f"changes found{kind}"] = f"{counts[0]} of {len(first)} first, {counts[1]} of {len(later)} later"
    if "harm" in rows[0]:
        for declared in (1, 0):
            some = [row for row in rows if (row["declared under attack"] > 0) == declared]
            for name in ("harm", "harm without"):
                hits = sum(round(row[name]) for row in some)
                _, low, high = wilson(hits, len(some)) if some else (0.0, 0.0, 1.0)
                where = "declared" if declared else "other"
                result[f"{name} in {where} batches"] = f"{hits} of {len(some)} ({100 * low:.1f}–{100 * high:.1f} %)"
    return result


def mean_and_interval(values: list[float]) -> str | None:
    """Return the mean and a 95 % bootstrap interval."""
    if not values:
        return None
    sample = torch.tensor(values, dtype=torch.float64)
    draws = torch.randint(len(values), (2000, len(values)), generator=torch.Generator().manual_seed(0))
    low, high = sample[draws].mean(dim=1).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return f"{sample.mean().item():.1f} ({low:.1f}–{high:.1f})"


def read_record(options: argparse.Namespace, facts: Row) -> dict[str, Any]:
    """Return what has been measured with these options."""
    kept = ("data", "size", "corruptions", "batches", "steps")
    given = {name: getattr(options, name) for name in kept}
    if options.json and options.json.exists():
        record: dict[str, Any] = json.loads(options.json.read_text())
        if record["options"] != given:
            raise ValueError(f"{options.json} was measured with other options: {record['options']}.")
        return record
    return {"facts": facts, "options": given, "cells": {}}


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Keep what has been measured."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(record) + "\n")
    new.replace(path)


if __name__ == "__main__":
    sys.exit(cli.run_program("changes.py", main))
