"""Run random trials of what ``docs/reliability.md`` promises, and print how many there were and what broke.

python -m tests.torture                         every kind, in some minutes
python -m tests.torture states --trials 100     one kind
python -m tests.torture states --first 17 --trials 1    trial 17 again, with its traceback
"""

from __future__ import annotations

import os

# Before torch is loaded: processes with threads or GPUs cannot fork.
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import argparse
import sys

import torch

from medbn.bench import Place, machine_facts

from . import adapters, files, runs  # noqa: F401  register their kinds
from .trials import KINDS, run_kind


def main(arguments: list[str] | None = None) -> int:
    """Run trials; return 1 if a promise is broken."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.torture", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)} (default: all)")
    parser.add_argument("--trials", type=int, metavar="N", help="of each kind (default: see the table)")
    parser.add_argument("--first", type=int, default=0, metavar="I", help="number of the first trial (default: 0)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="(default: 0)")
    options = parser.parse_args(arguments)
    for name in options.kinds:
        if name not in KINDS:
            parser.error(f"no kind {name!r}; there are {', '.join(KINDS)}.")
    torch.set_num_threads(1)
    facts = machine_facts(Place())
    print(f"seed {options.seed}; {facts['device']}, Python {facts['python']}, torch {facts['torch']}")
    broken = 0
    for name in options.kinds or KINDS:
        trials = KINDS[name].trials if options.trials is None else options.trials
        report = run_kind(name, trials, options.seed, options.first, verbose=trials == 1)
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(report.outcomes.items()))
        print(f"{name:<11}{report.trials:>6} trials: {counts}", flush=True)
        for line in report.broken[:20]:
            print(f"  {line}")
        if len(report.broken) > 20:
            print(f"  and {len(report.broken) - 20} more")
        broken += len(report.broken)
    print("every promise held" if not broken else f"{broken} trials broke a promise")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
