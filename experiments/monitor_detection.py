"""Does the monitor notice attacks, and how often does it raise a false alarm? The answer is a table.

    python experiments/monitor_detection.py digits          # the recipe of the table in docs/deploying.md
    python experiments/monitor_detection.py cifar10-c       # the same on CIFAR-10-C, for a GPU

The signals of every batch are measured once, with a method without memory (TeBN), and kept in the file of ``--json``;
an interrupted run continues there. Streams are then drawn from the measured batches without replacement: a reference,
batches like it, and after those the attacked or changed ones. The delay is the number of attacked batches up to the
alarm; attacked batches are few, so an alarm may come after the last of them and is not counted then. A false alarm is
one in a stream, as long, of clean batches alone.

``cifar10-c`` needs what ``reproduce.py`` needs.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import medbn
from _cifar import resnet26
from medbn import attacks, cli, data, models
from medbn.bench import Place, deterministic, machine_facts
from medbn.methods import Adapter
from medbn.monitor import Record, Watch

ALPHAS = (0.1, 0.01)
CHANGES = ("contrast", "brightness")
RECIPES: dict[str, dict[str, Any]] = {
    "digits": {"data": "digits", "images": 60, "clean": 400, "attacked": 16, "steps": 30, "step_size": 4.0},
    "cifar10-c": {"data": "cifar10-c", "images": 200, "clean": 600, "attacked": 20, "steps": 100, "step_size": 1.0},
}
"""Options by the name of a table; what is given beside the name changes them."""


def main() -> None:
    parser = cli.Parser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("recipe", nargs="?", choices=RECIPES, help="the options of a table; others change them")
    parser.add_argument("--data", choices=("digits", "cifar10-c"), default="digits")
    parser.add_argument("--root", type=Path, help="the data folder")
    parser.add_argument("--estimator", default="median")
    parser.add_argument("--corruption", default="gaussian_noise", help="of all batches but the changed ones")
    parser.add_argument("--changes", nargs="*", default=list(CHANGES), help="corruptions to change to")
    parser.add_argument("--images", type=cli.positive_int, default=60, help="in a batch; a fifth of them is malicious")
    parser.add_argument("--clean", type=cli.positive_int, default=400, help="clean batches")
    parser.add_argument("--attacked", type=cli.positive_int, default=12, help="batches of each attack")
    parser.add_argument("--steps", type=cli.positive_int, default=20, help="of an attack")
    parser.add_argument("--step-size", type=cli.positive_float, default=5.0, help="in 1/255")
    parser.add_argument(
        "--stealth", type=cli.positive_float, default=10.0, help="of the attacker who knows the monitor"
    )
    parser.add_argument("--reference", type=cli.positive_int, default=50, help="batches")
    parser.add_argument("--before", type=cli.positive_int, default=20, help="clean batches between it and the change")
    parser.add_argument("--streams", type=cli.positive_int, default=200)
    parser.add_argument("--minutes", type=cli.positive_float, help="measure for about as long, and continue next time")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, default=Path("monitor-detection.json"), metavar="FILE")
    recipe = parser.parse_args().recipe
    if recipe:
        parser.set_defaults(**RECIPES[recipe], json=Path(f"monitor-{recipe}.json"))
    options = parser.parse_args()
    least = options.reference + options.before + options.attacked
    if options.clean < least:
        raise ValueError(f"--clean must be at least {least}, got {options.clean}.")
    settings = {
        name: value for name, value in vars(options).items() if name not in ("json", "minutes", "recipe", "root")
    }
    record: dict[str, Any] = {"settings": _select_measured(settings), "batches": {}}
    if options.json.exists():
        record = json.loads(options.json.read_text())
        if record["settings"] != _select_measured(settings):
            raise ValueError(f"{options.json} was measured with other options; give another file with --json.")
    place = Place(device=options.device)
    with deterministic(place):
        finished, complete = measure(options, record)
    options.attacked = complete  # where it was stopped, streams have as many attacked batches as there are of each kind
    if complete:
        record["rows"] = summarise(options, record["batches"])
        _save(options.json, record)
        show(options, record)
    if not finished:
        print(f"not finished; the same command continues: {options.json}")
        sys.exit(3)


# --- measure ----------------------------------------------------------------------------------------------------------


def measure(options: argparse.Namespace, record: dict[str, Any]) -> tuple[bool, int]:
    """Measure what is missing; return whether everything is there, and how many batches of each kind there are."""
    end = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
    kinds = conditions(options)
    # Clean batches first, and then one batch of each kind after the other.
    order = [(name, n) for name, (count, _) in kinds.items() for n in range(count)]
    order.sort(key=lambda pair: (pair[0] != "none", pair[1]))
    missing = [(name, n) for name, n in order if n >= len(record["batches"].setdefault(name, []))]
    if missing:
        adapter = load(options)
        monitor = medbn.Monitor(adapter, alarms=[])
        record.setdefault("facts", machine_facts(Place(device=options.device)))
    for name, number in missing:
        if time.monotonic() > end:
            break
        images, labels, objective = kinds[name][1](adapter, number)
        with torch.no_grad():
            poisoned = objective is not None
            benign = torch.arange(len(images)) < options.images - options.images // 5 * poisoned
            logits = adapter(images)
            harm = (objective or attacks.Indiscriminate()).harm(logits, labels, benign.to(labels.device))
        assert monitor.latest is not None
        record["batches"][name].append({"signals": monitor.latest.signals, "harm": float(harm)})
        if poisoned or number % 20 == 19:
            _save(options.json, record)
    _save(options.json, record)
    counts = {name: len(measured) for name, measured in record["batches"].items()}
    complete = min(count for name, count in counts.items() if name != "none")
    return all(counts[name] >= count for name, (count, _) in kinds.items()), min(complete, options.attacked)


def load(options: argparse.Namespace) -> Adapter:
    """Return the adapter that is watched."""
    if options.data == "digits":
        model = models.get("resnet-small", weights="shipped").to(options.device)
    else:
        model = resnet26(options.root, options.device)
    return medbn.adapt(model, "tebn", options.estimator)


Batches = Callable[[Adapter, int], tuple[Tensor, Tensor, "attacks.Objective | None"]]


def conditions(options: argparse.Namespace) -> dict[str, tuple[int, Batches]]:
    """Return what is measured: the number of batches, and a function that returns the n-th, which has its own seed."""
    pools: dict[str, tuple[Tensor, Tensor]] = {}

    def pool(corruption: str) -> tuple[Tensor, Tensor]:
        if corruption not in pools:
            stream = data.load(options.data, corruption=corruption, severity=5, root=options.root, frost="synthetic")
            pools[corruption] = next(stream.batches(len(stream)))
        return pools[corruption]

    def draw(corruption: str, seed: int, classes: int | None = None) -> tuple[Tensor, Tensor]:
        images, labels = pool(corruption)
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(len(images), generator=generator)
        if classes is not None:
            kept = torch.randperm(10, generator=generator)[:classes]
            chosen = chosen[torch.isin(labels[chosen], kept)]
        chosen = chosen[: options.images]
        return images[chosen].to(options.device), labels[chosen].to(options.device)

    def plain(corruption: str, first_seed: int, classes: int | None = None) -> Batches:
        return lambda adapter, number: (*draw(corruption, first_seed + number, classes), None)

    def attack_stream(attack: Any) -> Batches:
        malicious = slice(options.images - options.images // 5, options.images)

        def batch(adapter: Adapter, number: int) -> tuple[Tensor, Tensor, attacks.Objective]:
            images, labels = draw(options.corruption, 10**6 + number)
            return attack(adapter, images, labels, malicious), labels, attack.objective

        return batch

    common = {"steps": options.steps, "step_size": options.step_size / 255}
    targeted, indiscriminate = attacks.Targeted(), attacks.Indiscriminate()
    near, stealth = {"epsilon": 8 / 255, "start": "clean"}, {"stealth": options.stealth}
    crafted = {
        "targeted, ε = 1": attacks.DIA(targeted, **common),
        "targeted, ε = 8/255": attacks.DIA(targeted, **common, **near),
        "indiscriminate, ε = 1": attacks.DIA(indiscriminate, **common),
        "indiscriminate, ε = 8/255": attacks.DIA(indiscriminate, **common, **near),
        "targeted, aligned": attacks.DIA(targeted, alignment=1.0, **common),
        "targeted, knows the monitor, ε = 1": attacks.Unnoticed(targeted, **common, **stealth, start="clean"),
        "indiscriminate, knows the monitor, ε = 1": attacks.Unnoticed(
            indiscriminate, **common, **stealth, start="clean"
        ),
    }
    return {
        "none": (options.clean, plain(options.corruption, 0)),
        **{
            f"change to {name.replace('_', ' ')}": (options.attacked, plain(name, 2 * 10**6))
            for name in options.changes
        },
        "label shift: two classes": (options.attacked, plain(options.corruption, 3 * 10**6, classes=2)),
        **{name: (options.attacked, attack_stream(attack)) for name, attack in crafted.items()},
    }


# --- summarise --------------------------------------------------------------------------------------------------------


def summarise(options: argparse.Namespace, batches: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Draw streams from the measured batches; return a row per condition and false-alarm rate."""
    clean = [batch["signals"] for batch in batches["none"]]
    length = options.reference + options.before
    rows = []
    for name, measured in batches.items():
        found: dict[float, list[int | None]] = {alpha: [] for alpha in ALPHAS}
        early = dict.fromkeys(ALPHAS, 0)
        which: dict[str, int] = {}
        for seed in range(options.streams):
            rng = random.Random(seed)
            stream = rng.sample(clean, length + options.attacked)
            if name != "none":
                stream[length:] = rng.sample([batch["signals"] for batch in measured], options.attacked)
            alarms = first_alarms(stream, options.reference, seed)
            for alpha in ALPHAS:
                at, signal = alarms[alpha]
                early[alpha] += at is not None and at < length
                found[alpha].append(None if at is None or at < length else at - length + 1)
                if alpha == ALPHAS[-1] and signal is not None:
                    which[signal] = which.get(signal, 0) + 1
        harm = statistics.mean(batch["harm"] for batch in measured)
        for alpha in ALPHAS:
            delays = [delay for delay in found[alpha] if delay is not None]
            row = {
                "condition": name,
                "alpha": alpha,
                "streams": options.streams,
                "alarms": len(delays),
                "early": early[alpha],
                "delay": statistics.median(delays) if delays else None,
                "harm": harm,
                "batches": len(measured),
            }
            rows.append(row | {"signals": which})
    return rows


First = dict[float, tuple[int | None, str | None]]


def first_alarms(stream: list[dict[str, float]], reference: int, seed: int) -> First:
    """Return for every rate the place in the stream of the first alarm, and its signal."""
    records = [Record(n, 0.0, "reference", signals) for n, signals in enumerate(stream[:reference])]
    watch = Watch(ALPHAS[-1], records, None, seed)
    first: First = dict.fromkeys(ALPHAS, (None, None))
    for number, signals in enumerate(stream[reference:], start=reference):
        watch.update(number, signals)
        signal, evidence = max(watch.evidence().items(), key=lambda pair: pair[1])
        for alpha in ALPHAS:
            # The capital needed is in proportion to 1 / α.
            needed = watch.threshold + torch.tensor(watch.alpha / alpha).log10().item()
            if first[alpha][0] is None and evidence >= needed:
                first[alpha] = (number, signal)
    return first


# --- show -------------------------------------------------------------------------------------------------------------


def show(options: argparse.Namespace, record: dict[str, Any]) -> None:
    """Print the table as Markdown."""
    facts = record["facts"]
    print(
        f"{facts['device']}, torch {facts['torch']}; {options.streams} streams with {options.attacked} attacked batches"
    )
    alphas = "".join(f" alarms, α = {alpha:g} | delay |" for alpha in ALPHAS)
    print(f"\n| condition | harm |{alphas}")
    print("|---|---|" + "---|" * 2 * len(ALPHAS))
    rows = record["rows"]
    for name in dict.fromkeys(row["condition"] for row in rows):
        own = [row for row in rows if row["condition"] == name]
        cells = ""
        for row in own:
            rate = 100 * (row["alarms"] + (row["early"] if name == "none" else 0)) / row["streams"]
            delay = "–" if row["delay"] is None or name == "none" else f"{row['delay']:g}"
            cells += f" {rate:.1f} % | {delay} |"
        print(f"| {name} | {100 * own[0]['harm']:.0f} % |{cells}")


def _select_measured(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the options that the measured signals depend on."""
    return {k: v for k, v in settings.items() if k not in ("reference", "before", "streams", "attacked", "clean")}


def _save(path: Path, record: dict[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(record, indent=1) + "\n")
    partial.replace(path)


if __name__ == "__main__":
    sys.exit(cli.run_program("monitor_detection.py", main))
