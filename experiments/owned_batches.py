"""What does an attacker do who owns whole batches, and what does bounded influence save? Pieces of a run.

    python experiments/owned_batches.py cifar10-c [PIECE ...] [--store FILE] [--minutes 9] [--jobs 4]
    python experiments/owned_batches.py digits --store owned-digits.db

Without a piece, all of a benchmark run in the order below. Every finished batch is stored at once: run the same command
again until it says that all is done. Digits are for a CPU: smaller batches, fewer and larger steps, and a rate of
learning ten times as high, without which nothing happens to so small a model. The pieces of CIFAR-10-C have not been
run on a GPU yet: there are no times.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from _pieces import Pieces, run_benchmark
from medbn import bench, cli
from medbn.bench import Recipe

BLE = "balanced_low_entropy"
NEWER = ("deyo", "roid", "cotta")
"""Methods that learn and came after the MedBN paper."""
LEARNERS = ("tent", "eata", "sar", *NEWER)
RATE, HELD = 0.01, 0.5
"""Of learning on digits, and of ``past`` there, where a condition lasts for two batches."""
BOUNDED = {
    "batch": {"influence": "clip", "past_momentum": None},
    "past": {"influence": "clip"},
    "median": {"influence": "median"},
}
"""Bounded influence: with statistics of the batch, and with those of ``past``."""


def owned(name: str, **narrowing: Any) -> Recipe:
    """Return a recipe of owned batches with shuffled streams."""
    return bench.recipes.get(name).narrow(seeds=(1,), **narrowing)


def bounded(recipe: Recipe, kind: str, **options: Any) -> Recipe:
    """Return a recipe with bounded influence for all of its methods, which learn."""
    given = {method: {**options, **BOUNDED[kind]} for method in recipe.methods}
    return replace(recipe, name=f"{recipe.name}-bounded-{kind}", options=given)


def with_share(recipe: Recipe, share: float) -> Recipe:
    """Return a recipe with another share of batches that are the attacker's."""
    settings = tuple(replace(setting, owned=share) for setting in recipe.settings)
    return replace(recipe, name=f"{recipe.name}-{share:g}", settings=settings)


def cifar10() -> Pieces:
    """Return the runs on CIFAR-10-C with a WideResNet-28-10, 2,000 images of each corruption."""
    learners = owned("owned-batches", methods=LEARNERS)
    main = owned("owned-batches", methods=("tebn", *LEARNERS, "past"))
    small = tuple(replace(attack, epsilon=8 / 255) for attack in main.attacks)
    return {
        "main": [main],
        "bounded": [bounded(learners, kind) for kind in BOUNDED],
        "share-0.3": [with_share(owned("owned-batches", methods=("past", "eata", "tent")), 0.3)]
        + [with_share(bounded(owned("owned-batches", methods=("tent", "eata")), kind), 0.3) for kind in BOUNDED],
        "share-0.1": [with_share(owned("owned-batches", methods=("past", "eata")), 0.1)],
        "replay": [owned("owned-batches-replay")],
        "transfer": [owned("owned-batches-transfer", methods=("tent", "eata", "past"))],
        "epsilon": [replace(main, name="owned-batches-small", attacks=small)],
    }


def digits() -> Pieces:
    """Return the runs on digits: 100 images of each corruption, batches of 50, ten steps of 0.04."""
    setting = replace(bench.DIGITS, batch_size=50, malicious=0, owned=0.5, per_corruption=100)
    options = {"tent": {"lr": RATE}, "eta": {"lr": RATE}, "past": {"momentum": HELD}}

    def small(name: str, *methods: str) -> Recipe:
        recipe = owned(name, methods=methods)
        attacks = tuple(replace(a, steps=min(a.steps, 10), step_size=0.04) for a in recipe.attacks)
        own = {method: options[method] for method in methods if method in options}
        return replace(recipe, settings=(setting,), attacks=attacks, options=own)

    def limited(recipe: Recipe, kind: str) -> Recipe:
        held = {"past_momentum": HELD} if kind == "past" else {}
        given = {m: {"lr": RATE, **BOUNDED[kind], **held} for m in recipe.methods}
        return replace(recipe, name=f"{recipe.name}-bounded-{kind}", options=given)

    crafted, again = (small(name, "tent", "eta") for name in ("owned-batches", "owned-batches-replay"))
    return {
        "main": [small("owned-batches", "tent", "eta", "tebn", "past")],
        "bounded": [limited(crafted, kind) for kind in ("batch", "past")],
        "replay": [small("owned-batches-replay", "tent", "eta", "past")]
        + [limited(again, kind) for kind in ("batch", "past")],
        "rate": [replace(crafted.narrow(estimators=("mean",)), name="owned-batches-default-rate", options={})],
    }


BENCHMARKS = {"cifar10-c": cifar10, "digits": digits}


def main() -> int:
    return run_benchmark(__doc__, BENCHMARKS, store="owned-batches.db")


if __name__ == "__main__":
    sys.exit(cli.run_program("owned_batches.py", main))
