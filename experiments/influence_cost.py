"""How much of a batch's time does bounded influence take? Adapters with and without the bound take turns.

    python experiments/influence_cost.py --model resnet-small --images 50 --size 16 --json influence-cost-cpu.json
    python experiments/influence_cost.py --device cuda

Weights are random, which takes the same time. In every round each adapter serves the same images, in alternating
order. A ratio is of two neighbouring calls, with the bound and without; on a CPU, of the time that this process
computed, which other processes do not add to.
"""

from __future__ import annotations

import sys

import medbn
from _serving import Turns, make_inputs, print_place, read_options, write_record
from medbn import cli

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
    facts, rows = print_place(options), []
    for method, method_options in METHODS.items():
        plain = medbn.adapt(model, method, "median", **method_options)
        for influence in INFLUENCES:
            bounded = medbn.adapt(model, method, "median", influence=influence, **method_options)
            turns = Turns.of(plain, bounded, images, options.rounds, WARM_UP)
            rows.append({"method": method, "influence": influence, **turns.record()})
            print(f"{method:6} {influence:8} {turns.describe()}", flush=True)
    write_record(options, facts, rows)


if __name__ == "__main__":
    sys.exit(cli.run_program("influence_cost.py", main))
