"""What does a moving average cost when the images change? All corruptions in turn, without a reset between them.

    python experiments/shifting_stream.py [--batches 10] [--json shifting-stream-h200.json]

Every corruption of CIFAR-10-C lasts for a number of batches of 200. Errors are means over all batches, over the first
batch of each corruption, the fifth if there is one, and the last. The time of a batch is relative to that of TeBN with
BatchNorm on the same batch. It needs what ``reproduce.py`` needs, and a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import torch

import medbn
from _cifar import resnet26
from medbn import cli, data
from medbn.bench import Place, deterministic, machine_facts
from medbn.data import corruptions

STREAMS: list[tuple[str, str, dict[str, Any]]] = [
    ("source", "mean", {}),
    ("tebn", "mean", {}),
    ("tebn", "image_median", {}),
    ("sema", "image_median", {}),
    ("sema", "image_median", {"momentum": 0.05, "counted": True}),
    ("past", "image_median", {}),
    ("past", "image_median", {"momentum": 0.1}),
    ("past", "image_median", {"momentum": 0.2}),
    ("past", "image_median@0.5", {}),
    ("past", "image_median@0.5", {"two_pass_batches": 0}),
    ("past", "image_median@0.5", {"two_pass_batches": 10_000}),
]


def main() -> None:
    parser = cli.Parser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--batches", type=cli.positive_int, nargs="+", default=[10, 50], help="of each corruption")
    parser.add_argument("--size", type=cli.positive_int, default=200, help="images in a batch")
    parser.add_argument("--root", type=Path, help="the data folder")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    model = resnet26(options.root, cli.choose_device(options.device))
    place = Place(device=options.device)
    with deterministic(place):
        rows = [row for batches in options.batches for row in measure_errors(model, batches, options)]
        machine = machine_facts(place)
    print(f"{machine['device']}, torch {machine['torch']}; error in per cent, batches of {options.size}")
    print(
        f"{'method':8}{'estimator':18}{'options':34}{'batches':>8}{'all':>8}{'first':>8}{'fifth':>8}{'last':>8}{'time':>8}"
    )
    for row in rows:
        changes = ", ".join(f"{name}={value}" for name, value in row["options"].items())
        columns = [row[part] for part in ("all", "first", "fifth", "last")]
        errors = "".join(f"{'–':>8}" if error is None else f"{error:8.1f}" for error in columns)
        print(f"{row['method']:8}{row['estimator']:18}{changes:34}{row['batches']:8}{errors}{row['time']:8.2f}")
    if options.json:
        options.json.write_text(json.dumps({"facts": machine, "rows": rows}, indent=1) + "\n")


def measure_errors(model: torch.nn.Module, batches: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the errors of every method over a stream whose corruption changes after ``batches`` batches."""
    adapters = [medbn.adapt(model, method, estimator, **changes) for method, estimator, changes in STREAMS]
    wrong: list[list[list[int]]] = [[] for _ in adapters]
    times: list[list[float]] = [[] for _ in adapters]
    for corruption in corruptions.NAMES:
        stream = data.load("cifar10-c", corruption=corruption, severity=5, root=options.root)
        stream = stream.shuffle(zlib.crc32(f"1 {corruption}".encode()))
        for one in wrong:
            one.append([])
        for images, labels in stream.batches(options.size, device=options.device, limit=batches):
            for adapter, counted, taken in zip(adapters, wrong, times, strict=True):
                began = time.perf_counter()
                with torch.no_grad():
                    counted[-1].append(int((adapter(images).argmax(1) != labels).sum()))  # waits for a GPU
                taken.append(time.perf_counter() - began)
    rows = []
    plain = times[[stream[:2] for stream in STREAMS].index(("tebn", "mean"))]
    for (method, estimator, changes), counted, taken in zip(STREAMS, wrong, times, strict=True):
        errors = average_errors(torch.tensor(counted).double().mul(100 / options.size))
        ratio = statistics.fmean(t / p for t, p in zip(taken, plain, strict=True))
        row = {"method": method, "estimator": estimator, "options": changes, "batches": batches}
        rows.append({**row, **errors, "time": round(ratio, 3)})
    return rows


def average_errors(table: torch.Tensor) -> dict[str, float | None]:
    """Return the averages of errors by corruption (rows) and batch (columns); None if there is no fifth batch."""
    parts = {"all": table, "first": table[:, :1], "fifth": table[:, 4:5], "last": table[:, -1:]}
    return {name: round(part.mean().item(), 2) if part.numel() else None for name, part in parts.items()}


if __name__ == "__main__":
    sys.exit(cli.run_program("shifting_stream.py", main))
