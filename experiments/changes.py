"""Does `past` find changes, what does that cost, and what do attackers do to it? With ``changes="detect"``.

    python experiments/changes.py [alarms] [errors] [owned] [--data cifar10-c] [--json changes-h200.json]

alarms: every corruption for 50 batches, by the first layer alone, on which the choice depends: changes found in two
orders, and false alarms without attack, with 20 % checkerboards, white or grey images, and with 20 % of the images
crafted to raise one, on alternating sides of the memory. Takes minutes on a CPU.
errors: all corruptions in turn, never reset, for 50, 10, 4 and 1 batches each, in two orders.
owned: the same stream, in which a share of the batches is the attacker's: checkerboards, white and grey images in
calls of a batch, of one image and of many batches, and batches crafted with three gradients (--steps).

Without names all three run. ``--data digits`` needs no download. Errors are in per cent; intervals are 95 %, by a
bootstrap over batches.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import medbn
from _cifar import resnet26
from medbn import attacks, cli, data, models
from medbn.attacks import DIA, Indiscriminate, Interleaved
from medbn.bench import Place, deterministic, machine_facts
from medbn.data import corruptions
from medbn.methods import predict_logits

DETECT: dict[str, Any] = {"changes": "detect"}
METHODS: list[tuple[str, str, dict[str, Any]]] = [
    ("tebn", "mean", {}),
    ("past", "image_median@0.5", {}),
    ("past", "image_median@0.5", DETECT),
    ("past", "image_median@0.5", DETECT | {"fallback": 0.3}),
    ("past", "image_median@0.5", DETECT | {"fallback": 0.0}),
    ("past", "image_median@0.5", DETECT | {"fallback": 1.0}),
    ("past", "image_median@0.5", DETECT | {"memories": 1}),
]
IMAGES = ("checkerboard", "white", "grey")
SEEDS = (0, 1)
"""Of the orders of the corruptions; 0 is the benchmark's own."""
Row = dict[str, Any]


def main() -> None:
    parser = cli.Parser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("parts", nargs="*", help="alarms, errors, owned; default: all", metavar="PART")
    parser.add_argument("--data", default="cifar10-c", choices=("cifar10-c", "digits"))
    parser.add_argument(
        "--batches", type=cli.positive_int, nargs="+", default=[50, 10, 4, 1], help="of each corruption"
    )
    parser.add_argument("--size", type=cli.positive_int, help="images in a batch; default: 200, and 100 for digits")
    parser.add_argument("--corruptions", nargs="+", default=list(corruptions.NAMES), metavar="C")
    parser.add_argument("--methods", type=int, nargs="+", default=list(range(len(METHODS))), help="rows of METHODS")
    parser.add_argument("--orders", type=cli.positive_int, default=len(SEEDS), help="how many orders, at most 2")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.1, 0.3, 0.5], help="of owned batches")
    parser.add_argument("--steps", type=cli.natural_int, default=100, help="of crafted batches; 0 leaves them out")
    parser.add_argument("--root", type=Path, help="the data folder")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    for name in options.parts:
        if name not in PARTS:
            raise ValueError(f"there is no part {name!r}; the parts are {', '.join(PARTS)}.")
    options.size = options.size or {"digits": 100}.get(options.data, 200)
    device = cli.choose_device(options.device)
    digits = options.data == "digits"
    model = models.get("resnet-small", weights="shipped").to(device) if digits else resnet26(options.root, device)
    place = Place(device=options.device)
    machine = machine_facts(place)
    print(f"{machine['device']}, torch {machine['torch']}; {options.data}, batches of {options.size}", flush=True)
    rows: list[Row] = []
    with deterministic(place):
        for name in options.parts or PARTS:
            for row in PARTS[name](model, options):
                print(name, ", ".join(f"{key}: {value}" for key, value in row.items()), flush=True)
                rows.append({"part": name, **row})
                if options.json:
                    options.json.write_text(json.dumps({"facts": machine, "rows": rows}, indent=1) + "\n")


# --- alarms -----------------------------------------------------------------------------------------------------------


def count_alarms(model: nn.Module, options: argparse.Namespace) -> Iterator[Row]:
    """Count alarms in streams of one corruption, with every attack, and the changes found in streams of all."""
    stub = first_layer(model)
    for batches, seed in itertools.product(options.batches, SEEDS[: options.orders]):
        tta = detector(stub, options)
        first, later = [0, 0], 0
        for number, (images, _, position) in enumerate(stream(options, batches, seed)):
            before = count_changes(tta)
            tta(images)
            if position == 0 and number:
                first[0] += count_changes(tta) - before
                first[1] += 1
            elif number:
                later += count_changes(tta) - before
        yield {"every": batches, "order": seed, "found": first, "other alarms": [later, number + 1 - first[1] - 1]}
    malicious = slice(options.size - options.size // 5, options.size)
    kinds = ["none", *IMAGES, *(["crafted"] if options.steps else [])]
    for kind in kinds:
        alarms, count = 0, 0
        for corruption in options.corruptions:
            tta = detector(stub, options)
            limit = max(options.batches) if kind != "crafted" else 14
            for number, (images, labels) in enumerate(load(options, corruption, limit)):
                poisoned, before = images, count_changes(tta)
                if kind in IMAGES:
                    poisoned = DIA(steps=0, start=kind)(tta, images, labels, malicious)
                elif kind == "crafted" and number:
                    objective = attacks.objectives.FalseAlarm(("above", "below", "crowded")[number % 3])
                    attack = DIA(objective, steps=options.steps, step_size=0.1, start="clean")
                    poisoned = attack(tta, images, labels, malicious)
                tta(poisoned)
                alarms += count_changes(tta) - before if number else 0
                count += bool(number)
        yield {"malicious": kind, "false alarms": [alarms, count]}


def first_layer(model: nn.Module) -> nn.Module:
    """Return a model that ends after the first normalisation layer."""
    parts: list[nn.Module] = []
    for part in model.children():
        parts.append(part)
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            break
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def detector(model: nn.Module, options: argparse.Namespace, **more: Any) -> medbn.methods.Adapter:
    """Return `past` with detection."""
    return medbn.adapt(model, "past", "image_median@0.5", batch_size=options.size, **DETECT, **more)


def count_changes(tta: medbn.methods.Adapter) -> int:
    """Return how many changes an adapter has found."""
    return int(tta.memory.get("declared", 0) + tta.memory.get("returned", 0))


# --- errors -----------------------------------------------------------------------------------------------------------


def measure_errors(model: nn.Module, options: argparse.Namespace) -> Iterator[Row]:
    """Measure the error of every method over streams without attack."""
    chosen = [METHODS[i] for i in options.methods]
    for batches in options.batches:
        errors: list[list[tuple[int, float]]] = [[] for _ in chosen]
        alarms = [0] * len(chosen)
        for seed in SEEDS[: options.orders]:
            adapters = make_adapters(model, chosen, options)
            for images, labels, position in stream(options, batches, seed):
                for adapter, counted in zip(adapters, errors, strict=True):
                    counted.append((position, error_of(predict_logits(adapter, images), labels)))
            alarms = [before + count_changes(a) for before, a in zip(alarms, adapters, strict=True)]
        for i, (method, estimator, changes) in enumerate(chosen):
            values = [error for _, error in errors[i]]
            first = [error for position, error in errors[i] if position == 0]
            paired = [error - other for error, (_, other) in zip(values, errors[0], strict=True)]
            yield {
                "every": batches, "method": method, "estimator": estimator, "options": changes,
                "error": mean_and_interval(values), "first": mean_and_interval(first),
                "more than the first row": mean_and_interval(paired), "changes found": alarms[i], "n": len(values),
            }  # fmt: skip


# --- owned ------------------------------------------------------------------------------------------------------------


def attack_memory(model: nn.Module, options: argparse.Namespace) -> Iterator[Row]:
    """Measure the error of benign batches among batches that the attacker owns."""
    every = sorted(options.batches)[len(options.batches) // 2]
    ways: list[tuple[str, DIA, dict[str, Any]]] = [
        (start, DIA(Indiscriminate(), steps=0, start=start), {}) for start in IMAGES
    ]
    board = ways[0][1]
    ways += [("checkerboard, one image a call", board, {"call_size": 1})]
    ways += [("checkerboard, at the start", board, {"at": "start", "period": every})]
    ways += [("checkerboard, huge calls", board, {"at": "start", "period": 3 * every, "call_size": 10**6})]
    if options.steps:
        for gradient in ("exact", "straight_through", "smooth"):
            ways += [(gradient, DIA(Indiscriminate(), steps=options.steps, gradient=gradient, start="clean"), {})]
    for share, (name, attack, where), i in itertools.product(options.shares, ways, options.methods):
        method, estimator, changes = METHODS[i]
        if method != "past":
            continue
        (adapter,) = make_adapters(model, [METHODS[i]], options)
        scenario = Interleaved(adapter, attack, share=share, **where)
        attacked, clean = [], []
        for images, labels, _ in stream(options, every, SEEDS[0]):
            outcome = scenario.step(images, labels)
            attacked.append(error_of(outcome.attacked, labels))
            clean.append(error_of(outcome.clean, labels))
        added = [a - c for a, c in zip(attacked, clean, strict=True)]
        yield {
            "share": share, "attack": name, "every": every, "method": method, "estimator": estimator,
            "options": changes, "error": mean_and_interval(attacked), "without": mean_and_interval(clean),
            "added": mean_and_interval(added), "changes found": count_changes(adapter), "n": len(added),
        }  # fmt: skip


PARTS = {"alarms": count_alarms, "errors": measure_errors, "owned": attack_memory}


# --- streams ----------------------------------------------------------------------------------------------------------


def make_adapters(
    model: nn.Module, chosen: list[tuple[str, str, dict[str, Any]]], options: argparse.Namespace
) -> list[medbn.methods.Adapter]:
    """Return an adapter for each row."""
    size = {"batch_size": options.size}
    return [medbn.adapt(model, m, name, **changes, **(size if m == "past" else {})) for m, name, changes in chosen]


def stream(options: argparse.Namespace, batches: int, seed: int) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Return batches of all corruptions in turn, with the position of each among those of its corruption."""
    names = list(options.corruptions)
    if seed:
        random.Random(seed).shuffle(names)
    for corruption in names:
        for position, (images, labels) in enumerate(load(options, corruption, batches)):
            yield images, labels, position


def load(options: argparse.Namespace, corruption: str, batches: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Return batches of one corruption, shuffled by a seed of its own."""
    frost = {"frost": "synthetic"} if options.data == "digits" and corruption == "frost" else {}
    dataset = data.load(options.data, corruption=corruption, severity=5, root=options.root, **frost)
    dataset = dataset.shuffle(zlib.crc32(f"1 {corruption}".encode()))
    return dataset.batches(options.size, device=options.device, limit=batches, drop_last=True)


def error_of(logits: Tensor, labels: Tensor) -> float:
    """Return the share of wrong predictions in per cent."""
    return 100 * (logits.argmax(dim=1) != labels).float().mean().item()


def mean_and_interval(values: list[float]) -> list[float]:
    """Return the mean and a 95 % bootstrap interval."""
    if not values:
        return []
    sample = torch.tensor(values, dtype=torch.float64)
    draws = torch.randint(len(values), (2000, len(values)), generator=torch.Generator().manual_seed(0))
    low, high = sample[draws].mean(dim=1).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return [round(number, 2) for number in (sample.mean().item(), low, high)]


if __name__ == "__main__":
    sys.exit(cli.run_program("changes.py", main))
