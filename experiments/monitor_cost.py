"""How much of a batch's time does the monitor take? Adapters with and without one take turns in one process.

    python experiments/monitor_cost.py --json monitor-cost-cpu.json
    python experiments/monitor_cost.py --model resnet50 --size 224 --images 64 --device cuda

Weights are random, which takes the same time. In every round each adapter serves the same images, in alternating
order. A ratio is of two neighbouring calls, with a monitor and without; on a CPU, of the time that this process
computed, which other processes do not add to.
"""

from __future__ import annotations

import copy
import json
import statistics
import sys
import time

import torch

import medbn
from _serving import make_inputs, read_options
from medbn import cli
from medbn.bench import Place, machine_facts
from medbn.methods import Adapter

METHODS = [("tebn", "mean"), ("tebn", "median"), ("tent", "median"), ("past", "image_median@0.5")]


def main() -> None:
    options = read_options(__doc__, rounds=15)
    model, images = make_inputs(options)
    machine, rows = machine_facts(Place(device=options.device)), []
    print(
        f"{machine['device']}, torch {machine['torch']}; {options.model}, {options.images} images of {options.size} px"
    )
    for method, estimator in METHODS:
        plain = medbn.adapt(model, method, estimator)
        watched = copy.deepcopy(plain)
        medbn.Monitor(watched, reference=2)
        ratios, times = [], []
        for number in range(options.rounds + 3):
            order = (plain, watched) if number % 2 else (watched, plain)
            taken = {adapter is watched: time_call(adapter, images) for adapter in order}
            if number >= 3:  # the first calls choose kernels and collect the reference
                ratios.append(taken[True] / taken[False])
                times.append(taken[False])
        low, middle, high = statistics.quantiles(ratios, n=4)
        row = {"method": method, "estimator": estimator, "ms": 1000 * statistics.median(times), "ratios": ratios}
        rows.append(row)
        print(f"{method:6} {estimator:18} {row['ms']:8.1f} ms  ratio {middle:.3f} (quartiles {low:.3f} to {high:.3f})")
    if options.json:
        options.json.write_text(
            json.dumps({"facts": machine, "settings": {**vars(options), "json": None}, "rows": rows})
        )


def time_call(adapter: Adapter, images: torch.Tensor) -> float:
    """Return the seconds that one call takes: computed by this process on a CPU, until the GPU is done on one."""
    if images.is_cuda:
        torch.cuda.synchronize()
        start = time.perf_counter()
        adapter(images)
        torch.cuda.synchronize()
        return time.perf_counter() - start
    start = time.process_time()
    adapter(images)
    return time.process_time() - start


if __name__ == "__main__":
    sys.exit(cli.run_program("monitor_cost.py", main))
