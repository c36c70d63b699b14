"""How much of a batch's time does the monitor take? Adapters with and without one take turns in one process.

    python experiments/monitor_cost.py --json monitor-cost-cpu.json
    python experiments/monitor_cost.py --model resnet50 --size 224 --images 64 --device cuda
    python experiments/monitor_cost.py --model resnet50 --size 224 --images 64 --device cuda --profile

Weights are random, which takes the same time. In every round each adapter serves the same images, in alternating
order. A ratio is of two neighbouring calls, with a monitor and without; on a CPU, of the time that this process
computed, which other processes do not add to. ``--profile`` shows instead what the monitor adds: kernels with their
time on the GPU, operations on a CPU, and the time until a call returns, which is all that the host does.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from collections import defaultdict

import torch
from torch.profiler import ProfilerActivity, profile

import medbn
from _serving import Turns, make_inputs, print_place, read_options, write_record
from medbn import cli
from medbn.methods import Adapter

WARM_UP = 3
"""The first calls choose kernels and collect the reference."""
SHOWN = 15
"""How many kernels ``--profile`` shows."""
PROFILED = 5
"""How many calls it takes the average of."""
METHODS = [("tebn", "mean"), ("tebn", "median"), ("tent", "median"), ("past", "image_median@0.5")]


def main() -> None:
    options = read_options(__doc__, rounds=15, profile="show which kernels the monitor adds, and how many")
    model, images = make_inputs(options)
    facts, rows = print_place(options), []
    for method, estimator in METHODS:
        plain = medbn.adapt(model, method, estimator)
        watched = copy.deepcopy(plain)
        medbn.Monitor(watched, reference=2)
        if options.profile:
            print(f"{method} {estimator}")
            profile_monitor(plain, watched, images)
            continue
        turns = Turns.of(plain, watched, images, options.rounds, WARM_UP)
        rows.append({"method": method, "estimator": estimator, **turns.record()})
        print(f"{method:6} {estimator:18} {turns.describe()}", flush=True)
    if not options.profile:
        write_record(options, facts, rows)


def profile_monitor(plain: Adapter, watched: Adapter, images: torch.Tensor) -> None:
    """Print what a watched adapter launches more than one without a monitor, which uses no CUDA graph here either."""
    plain.graph = False
    before, after = (list_kernels(adapter, images) for adapter in (plain, watched))
    names = sorted(before.keys() | after.keys())
    added = {name: [a - b for a, b in zip(after[name], before[name], strict=True)] for name in names}
    unit = "launches" if images.is_cuda else "operations"
    count, ms = (sum(values[k] for values in added.values()) for k in range(2))
    host = [
        1000 * statistics.median(time_host(adapter, images) for _ in range(PROFILED)) for adapter in (plain, watched)
    ]
    print(f"  {count:+.1f} {unit} and {ms:+.3f} ms per batch; until a call returns, {host[0]:.2f} to {host[1]:.2f} ms")
    for name in sorted(names, key=lambda name: -added[name][1])[:SHOWN]:
        print(f"  {added[name][1]:+8.3f} ms {added[name][0]:+6.1f}  {name[:100]}")


def list_kernels(adapter: Adapter, images: torch.Tensor) -> dict[str, list[float]]:
    """Return how often each kernel runs in a call, and its milliseconds; on a CPU, of operations."""
    activities = [ProfilerActivity.CUDA if images.is_cuda else ProfilerActivity.CPU]
    for _ in range(PROFILED):
        adapter(images)
    with profile(activities=activities) as profiled:
        for _ in range(PROFILED):
            adapter(images)
        if images.is_cuda:
            torch.cuda.synchronize()
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in profiled.key_averages():
        on_gpu = event.device_type == torch.autograd.DeviceType.CUDA
        if on_gpu == images.is_cuda:
            taken = event.self_device_time_total if on_gpu else event.self_cpu_time_total
            found[event.key][0] += event.count / PROFILED
            found[event.key][1] += taken / 1000 / PROFILED
    return found


def time_host(adapter: Adapter, images: torch.Tensor) -> float:
    """Return the seconds until a call returns, which on a GPU is before its kernels have run."""
    if images.is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    adapter(images)
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(cli.run_program("monitor_cost.py", main))
