"""Time every estimator's normalisation against BatchNorm.

    python benchmarks/layer.py [--device cuda] [--shapes all] [--json FILE]

Each is measured side by side with ``F.batch_norm(training=True)`` in one process: the candidates take turns, so that
whatever else the machine does hits all of them, and every ratio is of two runs that stood next to each other, the one
first as often as the other. The table shows the median ratio and, in brackets, its quartiles. ``mean`` is
``F.batch_norm`` itself, so its column shows what the measurement is worth.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import medbn
from medbn.functional import robust_norm

RESNET26 = [(200, 64, 32, 32), (200, 128, 16, 16), (200, 256, 8, 8), (200, 512, 4, 4)]
RESNET50 = [(16, 64, 112, 112), (16, 256, 56, 56), (16, 512, 28, 28), (16, 1024, 14, 14), (16, 2048, 7, 7)]
FORMATS = {"nchw": torch.contiguous_format, "channels_last": torch.channels_last}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=8, help="turns that every candidate takes (default: 8)")
    parser.add_argument("--shapes", choices=["resnet26", "resnet50", "all"], default="resnet26")
    parser.add_argument("--json", type=Path, help="also write every ratio to this file")
    options = parser.parse_args()

    shapes = {"resnet26": RESNET26, "resnet50": RESNET50, "all": RESNET26 + RESNET50}[options.shapes]
    name = torch.cuda.get_device_name() if options.device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(f"time relative to F.batch_norm, {name}, torch {torch.__version__}, float32; median [quartiles]")
    rows = []
    for layout in FORMATS:
        for direction in ("forward", "forward+backward"):
            print(f"\n{layout}, {direction}")
            print(f"  {'shape':20} {'batch_norm':>11}" + "".join(f"{e:>22}" for e in medbn.estimators.available()))
            for shape in shapes:
                base, ratios = compare(shape, layout, direction == "forward+backward", options.device, options.rounds)
                cells = "".join(f"{quartiles(r):>22}" for r in ratios.values())
                print(f"  {'×'.join(map(str, shape)):20} {base * 1e3:8.2f} ms{cells}", flush=True)
                rows.append(
                    {"layout": layout, "direction": direction, "shape": shape, "batch_norm_s": base, "ratios": ratios}
                )
    if options.json:
        machine = {"device": name, "platform": platform.platform(), "torch": torch.__version__}
        record = {"date": date.today().isoformat(), "machine": machine, "rounds": options.rounds, "rows": rows}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


def compare(
    shape: tuple[int, ...], layout: str, backward: bool, device: str, rounds: int
) -> tuple[float, dict[str, list[float]]]:
    """Seconds of batch_norm, and each estimator's time over that of the batch_norm beside it."""
    x = torch.randn(shape, device=device).to(memory_format=FORMATS[layout])
    g = torch.randn_like(x)
    x.requires_grad_(backward)
    weight, bias = (torch.ones(shape[1], device=device, requires_grad=backward) for _ in range(2))

    def run(norm: Callable[[], Tensor]) -> float:
        start = clock(device)
        y = norm()
        if backward:
            torch.autograd.grad(y, (x, weight, bias), g)
        return clock(device) - start

    def plain() -> Tensor:
        return F.batch_norm(x, None, None, weight, bias, training=True)

    def robust(estimator: str) -> Callable[[], Tensor]:
        return lambda: robust_norm(x, weight, bias, estimator)

    candidates = {name: robust(name) for name in medbn.estimators.available()}
    for norm in (plain, *candidates.values()):
        run(norm)
    base: list[float] = []
    ratios: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(rounds):
        for name, norm in candidates.items():
            if turn % 2:
                ours, theirs = run(norm), run(plain)
            else:
                theirs, ours = run(plain), run(norm)
            base.append(theirs)
            ratios[name].append(ours / theirs)
    return statistics.median(base), ratios


def clock(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def quartiles(ratios: list[float]) -> str:
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


if __name__ == "__main__":
    main()
