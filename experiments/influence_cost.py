"""How much of a batch's time does bounded influence take? Adapters with and without the bound take turns.

    python experiments/influence_cost.py --model resnet-small --images 50 --size 16 --json influence-cost-cpu.json
    python experiments/influence_cost.py --device cuda

Weights are random, which takes the same time. In every round each adapter serves the same images, in alternating
order. A ratio is of two neighbouring calls, with the bound and without; on a CPU, of the time that this process
computed, which other processes do not add to.
"""

from __future__ import annotations

import json
import statistics
import sys

import medbn
from _serving import make_inputs, read_options, time_call
from medbn import cli
from medbn.bench import Place, machine_facts

METHODS = {
    "tent": {},
    "eta": {"margin": 10.0, "redundancy": 1.1},
    "sar": {"margin": 10.0},
    "deyo": {"margin": 10.0, "plpd": -1.0},
}
"""The options with which every image passes the filters, which random weights would not pass."""
INFLUENCES = ("clip", "median")
WARM_UP = 2
"""The first calls choose kernels."""


def main() -> None:
    options = read_options(__doc__, rounds=12)
    model, images = make_inputs(options)
    machine, rows = machine_facts(Place(device=options.device)), []
    print(
        f"{machine['device']}, torch {machine['torch']}; {options.model}, {options.images} images of {options.size} px"
    )
    for method, method_options in METHODS.items():
        plain = medbn.adapt(model, method, "median", **method_options)
        for influence in INFLUENCES:
            bounded = medbn.adapt(model, method, "median", influence=influence, **method_options)
            ratios, times = [], []
            for number in range(options.rounds + WARM_UP):
                order = (plain, bounded) if number % 2 else (bounded, plain)
                taken = {adapter is bounded: time_call(adapter, images) for adapter in order}
                if number >= WARM_UP:
                    ratios.append(taken[True] / taken[False])
                    times.append(taken[False])
            low, middle, high = statistics.quantiles(ratios, n=4)
            row = {"method": method, "influence": influence, "ms": 1000 * statistics.median(times), "ratios": ratios}
            rows.append(row)
            print(
                f"{method:6}{influence:8}{row['ms']:9.1f} ms  ratio {middle:.2f} (quartiles {low:.2f} to {high:.2f})",
                flush=True,
            )
    if options.json:
        settings = {**vars(options), "json": None}
        options.json.write_text(json.dumps({"facts": machine, "settings": settings, "rows": rows}) + "\n")


if __name__ == "__main__":
    sys.exit(cli.run_program("influence_cost.py", main))
