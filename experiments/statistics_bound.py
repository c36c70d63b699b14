"""How often could a target fall, whatever the malicious images are? Gradient ascent over statistics.

    python experiments/statistics_bound.py --data digits --batches 4
    python experiments/statistics_bound.py --data cifar10-c cifar100-c --batches 1 --json statistics-bound.json

TeBN with each estimator, the first batches of each corruption in a shuffled order, a fifth of each batch malicious.
``attacks.StatisticsBound`` says what the number means. On CIFAR-10-C and CIFAR-100-C it has not been run yet.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from medbn import attacks, bench, cli
from medbn.bench import DIGITS, Cell, Place, Setting
from medbn.bench.intervals import wilson
from medbn.data.corruptions import NAMES

SETTINGS = {
    "digits": replace(DIGITS, batch_size=50, malicious=10),
    "cifar10-c": bench.recipes.get("targeted-instant").settings[0],
    "cifar100-c": bench.recipes.get("targeted-instant").settings[1],
}
ESTIMATORS = ("median", "image_median", *(f"image_median@{p}" for p in ("0.5", "0.6", "0.7", "0.8", "0.9")))


def measure(setting: Setting, estimator: str, options: argparse.Namespace) -> dict[str, object]:
    """Return how many targets fall, of how many, and how many are predicted so without attack."""
    bound = attacks.StatisticsBound(steps=options.steps, restarts=options.restarts)
    malicious = slice(setting.batch_size - setting.malicious, setting.batch_size)
    fallen = count = already = 0
    for corruption in options.corruptions:
        cell = Cell(setting, corruption, "tebn", estimator, None, "instant", 1)
        loaded = bench.load_cell(cell, Place(device=options.device), options.batches)
        adapter = bench.make_adapter(loaded, options.device)
        for images, labels in loaded.dataset.batches(
            setting.batch_size, device=options.device, limit=options.batches, drop_last=True
        ):
            fallen += int(bound(adapter, images, labels, malicious).harm)
            already += int(bound.objective.harm(adapter(images), labels, labels >= 0))
            count += 1
    rate = wilson(fallen, count)
    print(
        f"{setting.data:10} {estimator:16} {fallen:4} of {count} fall: {100 * rate.value:.0f} %"
        f" ({100 * rate.low:.0f}–{100 * rate.high:.0f}), {already} without attack",
        flush=True,
    )
    return {"data": setting.data, "estimator": estimator, "fallen": fallen, "targets": count, "already": already}


def main() -> None:
    parser = cli.Parser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", nargs="+", choices=SETTINGS, default=["digits"], metavar="NAME")
    parser.add_argument("--estimators", nargs="+", default=ESTIMATORS)
    parser.add_argument("--corruptions", nargs="+", choices=NAMES, default=NAMES, metavar="C")
    parser.add_argument("--batches", type=cli.positive_int, default=1, help="of each corruption (default: 1)")
    parser.add_argument("--steps", type=cli.positive_int, default=60)
    parser.add_argument("--restarts", type=cli.positive_int, default=2)
    parser.add_argument("--device", default=None)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts there")
    options = parser.parse_args()
    options.device = cli.choose_device(options.device)
    rows = [measure(SETTINGS[name], one, options) for name in options.data for one in options.estimators]
    if options.json:
        options.json.write_text(
            json.dumps({"steps": options.steps, "restarts": options.restarts, "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    sys.exit(cli.run_program("statistics_bound.py", main))
