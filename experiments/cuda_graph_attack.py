"""What does a CUDA graph save in an attack? Times of the loop, plain and captured as a CUDA graph.

    python experiments/cuda_graph_attack.py [--tf32 on,off] [--cudnn-benchmark off,on] [--profile median] [--json FILE]

Times the attack on one batch: 200 images of 32×32, 40 of them malicious, 100 steps of the targeted attack on ResNet-26.
Takes about a minute on a GPU (``--budget``). Every option that takes a list is an axis. All combinations take turns in
one process, so that other load on the machine affects all alike. Weights are random unless a file is given: they do not
change the time of a step. The bench's deterministic settings are on unless ``--deterministic off`` is given. The column
"first" has the cost of the capture, once per adapter. The column "× authors" compares with the paper authors' code on
one H200: 5.8 s a batch. ``--fuse off,on`` compares BatchNorm and ReLU in one kernel with kernels of their own.
"""

from __future__ import annotations

import itertools
import json
import platform
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import torch

import medbn
from medbn import cli, models
from medbn.attacks import DIA, Targeted
from medbn.bench import Place, deterministic

AUTHORS = {"sotta": 10.0}
"""Seconds per attacked batch of the authors' code on an H200, where it is not 5.8."""
FORMATS = {"nchw": torch.contiguous_format, "channels_last": torch.channels_last}
AXES = {
    "loop": ("plain", "graph"),
    "layout": tuple(FORMATS),
    "tf32": ("on", "off"),
    "cudnn_benchmark": ("off", "on"),
    "deterministic": ("on", "off"),
    "method": ("tebn", "tent", "sema", "mdia", "sotta", "sar", "eta"),
    "estimator": ("mean", "median", "image_median", "mad", "mad_scaled"),
    "gradient": ("exact", "straight_through", "smooth"),
    "fuse": ("off", "on"),
}
DEFAULTS = {
    "loop": "plain,graph",
    "layout": "nchw,channels_last",
    "method": "tebn,tent",
    "estimator": "mean,median,image_median",
}


def main() -> None:
    options = parse_options()
    device = torch.device(options.device)
    axes = {name: getattr(options, name).split(",") for name in AXES}
    for name, values in axes.items():
        for value in values:
            if value not in AXES[name]:
                raise ValueError(f"--{name.replace('_', '-')} takes {', '.join(AXES[name])}, not {value}.")
    if device.type != "cuda":
        axes |= {"loop": ["plain"], "tf32": ["off"], "cudnn_benchmark": ["off"]}
    if options.profile:
        axes |= {"estimator": [options.profile], "loop": axes["loop"][-1:], "layout": axes["layout"][-1:]}
        axes["method"] = axes["method"][:1]
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(
        f"{options.model}, {options.images} images of {options.size}×{options.size}, {options.malicious} malicious,"
        f" {options.steps} steps, targeted; {name}, torch {torch.__version__}"
    )
    start = time.perf_counter()
    candidates = [
        Candidate(dict(zip(axes, values, strict=True)), options) for values in itertools.product(*axes.values())
    ]
    if options.profile:
        profile(candidates[0], options)
        return
    for round in range(options.rounds):
        for candidate in candidates if round % 2 == 0 else reversed(candidates):
            if round and time.perf_counter() - start > options.budget:
                break
            candidate.measure()
    show(candidates, [axis for axis in AXES if len(axes[axis]) > 1 or axis in DEFAULTS])
    if options.json:
        machine = {"device": name, "platform": platform.platform(), "torch": torch.__version__}
        settings = {k: getattr(options, k) for k in ("model", "images", "size", "malicious", "steps")}
        record = {"date": date.today().isoformat(), "machine": machine, **settings}
        options.json.write_text(json.dumps(record | {"rows": [c.row() for c in candidates]}, indent=1) + "\n")


def parse_options() -> Any:
    parser = cli.Parser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", default="resnet26")
    parser.add_argument("--weights", help="a file; random weights without")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--size", type=int, default=32, help="of an image, in pixels (default: 32)")
    parser.add_argument("--malicious", type=int, default=40)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5, help="the most measurements of a combination (default: 5)")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds after which no further round starts")
    parser.add_argument("--profile", metavar="ESTIMATOR", help="show instead which kernels take the time of a step")
    parser.add_argument("--json", type=Path, help="also write every measurement to this file")
    for name, values in AXES.items():
        default = DEFAULTS.get(name, values[0])
        parser.add_argument(
            f"--{name.replace('_', '-')}", default=default, help=f"a list of {', '.join(values)} (default: {default})"
        )
    return parser.parse_args()


class Candidate:
    """One combination of the axes: an adapter that has adapted once, a batch, an attack, settings of torch."""

    def __init__(self, choice: dict[str, str], options: Any) -> None:
        self.choice, self.options, self.seconds = choice, options, list[float]()
        self.device = torch.device(options.device)
        g = torch.Generator().manual_seed(0)
        torch.manual_seed(0)
        form = FORMATS[choice["layout"]]
        model = models.get(options.model, weights=options.weights, classes=10, channels=3)
        model = model.to(self.device).to(memory_format=form)  # type: ignore[call-overload]
        shape = (options.images, 3, options.size, options.size)
        batches = [torch.rand(shape, generator=g).to(self.device).contiguous(memory_format=form) for _ in range(2)]
        self.images, self.labels = batches[1], torch.randint(10, shape[:1], generator=g).to(self.device)
        extra: dict[str, Any] = {"confidence": 0.0} if choice["method"] == "sotta" else {}
        self.attack = DIA(
            Targeted(0), steps=options.steps, gradient=choice["gradient"], graph=choice["loop"] == "graph"
        )
        with self.settings():
            extra["fuse"] = choice["fuse"] == "on"
            self.adapter = medbn.adapt(model, choice["method"], choice["estimator"], inplace=True, **extra)
            self.adapter(batches[0])
            start = self.clock()
            self.run(1)  # compiles kernels, and captures
            self.first = self.clock() - start

    def run(self, steps: int | None = None) -> None:
        """Attack the batch once."""
        attack = self.attack if steps is None else replace(self.attack, steps=steps)
        attack(self.adapter, self.images, self.labels, slice(self.options.images - self.options.malicious, None))

    def measure(self) -> None:
        """Time one attacked batch."""
        with self.settings():
            start = self.clock()
            self.run()
            self.seconds.append(self.clock() - start)

    def clock(self) -> float:
        """Return the time once the device has finished."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    @contextmanager
    def settings(self) -> Iterator[None]:
        """Apply this combination's settings of torch."""
        on = {name: value == "on" for name, value in self.choice.items()}
        exact = deterministic(Place(device=self.options.device)) if on["deterministic"] else nullcontext()
        before = torch.backends.cudnn.benchmark
        with exact:
            torch.backends.cudnn.benchmark = on["cudnn_benchmark"]
            if self.device.type == "cuda":
                set_tf32(on["tf32"])
            try:
                yield
            finally:
                torch.backends.cudnn.benchmark = before

    def row(self) -> dict[str, Any]:
        """Return the measurements as plain values."""
        return {**self.choice, "seconds": self.seconds, "first_s": self.first}


def set_tf32(on: bool) -> None:
    backends: Any = torch.backends
    if hasattr(backends.cudnn, "conv"):
        backends.cudnn.conv.fp32_precision = backends.cuda.matmul.fp32_precision = "tf32" if on else "ieee"
    else:
        backends.cudnn.allow_tf32 = backends.cuda.matmul.allow_tf32 = on


def show(candidates: list[Candidate], axes: list[str]) -> None:
    print("  ".join(f"{axis:>16}" for axis in axes) + "   s a batch [least, most]   ms a step   × authors   first, s")
    for c in candidates:
        middle = statistics.median(c.seconds)
        spread = f"{middle:.3f} [{min(c.seconds):.3f}, {max(c.seconds):.3f}]"
        gain = AUTHORS.get(c.choice["method"], 5.8) / middle
        cells = "  ".join(f"{c.choice[axis]:>16}" for axis in axes)
        print(f"{cells}   {spread:>24}   {1e3 * middle / c.options.steps:9.2f}   {gain:9.1f}   {c.first:8.2f}")


def profile(candidate: Candidate, options: Any) -> None:
    """Print which kernels (on a CPU, operators) take the time of a step."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    steps, cuda = min(10, options.steps), candidate.device.type == "cuda"
    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if cuda else [])
    with candidate.settings(), profiler(activities=kinds) as profiled:
        candidate.run(steps)
        candidate.clock()
    measure = "self_device_time_total" if cuda else "self_cpu_time_total"
    rows = [(getattr(e, measure), e.count, e.key) for e in profiled.key_averages()]
    rows = sorted((row for row in rows if row[0] > 0), reverse=True)
    total = sum(time for time, _, _ in rows)
    print(", ".join(f"{k}={v}" for k, v in candidate.choice.items()))
    print(
        f"{total / steps / 1e3:.3f} ms a step in {sum(row[1] for row in rows) / steps:.0f} launches, over {steps} steps"
    )
    print(f"{'µs a step':>10} {'share':>6} {'launches':>9}  kernel")
    for spent, count, name in rows[:25]:
        print(f"{spent / steps:10.1f} {spent / total:6.1%} {count / steps:9.1f}  {name[:110]}")


if __name__ == "__main__":
    sys.exit(cli.run_program("cuda_graph_attack.py", main))
