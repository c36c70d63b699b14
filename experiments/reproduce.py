"""What do the attacks and defences do on CIFAR-10-C? All experiments of docs/results.md, in pieces of minutes.

    python experiments/reproduce.py [PIECE ...] [--store cifar10-c.db] [--minutes 9] [--jobs 4]

Without a piece, all of them run in the order below: 78 minutes on an H200 with four to six processes. Every finished
batch is stored at once: run the same command again until it says that all is done. It needs the corrupted images
(``medbn data generate cifar10-c``), the training images for EATA, and ``resnet26-cifar10.safetensors`` in the data
folder's ``models``. Every stream is shuffled with a seed, each corruption in an order of its own, so that the first
batches of each contain other images. ``--seal FILE`` copies the results without the states from which streams continue.
With CUDA's MPS running, several jobs share a GPU.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from medbn import bench, cli, gradients
from medbn.bench import DEFENCES, Event, Recipe

ALL = ("source", "tebn", "tent", "eta", "eata", "sar", "sotta", "sema", "mdia")
FAMILIES = ("gaussian_noise", "defocus_blur", "fog", "contrast", "jpeg_compression")
"""One corruption of each kind, for experiments that would take too long with all fifteen."""
SEEDS = (1, 2, 3, 4)
"""Each gives other batches with other targets."""
LASTING = (*DEFENCES, "image_median@0.5")
MIXED = (*DEFENCES, "mean@0.6", "median@0.6", *(f"image_median@{prior}" for prior in (0.5, 0.6, 0.7, 0.8)))


def shuffled(name: str, seeds: tuple[int, ...] = (1,), **narrowing: Any) -> Recipe:
    """Return a recipe of the bench on CIFAR-10-C with shuffled streams; ``narrowing`` is that of ``Recipe.narrow``."""
    return bench.recipes.get(name).narrow(data=["cifar10-c"], seeds=seeds, **narrowing)


def in_file_order(name: str, recipe: str, **narrowing: Any) -> Recipe:
    """Return a recipe whose streams are in the order of the file, where all corruptions have the same targets."""
    base = bench.recipes.get(recipe).narrow(data=["cifar10-c"], **narrowing)
    about = f"{base.about} In the order of the file: all corruptions have the same targets."
    return replace(base, name=name, about=about)


def moving_average(name: str, weight: float, recipe: str = "memory", **narrowing: Any) -> Recipe:
    """Return a recipe with a moving average that includes the batch itself with a weight."""
    options = {"sema": {"momentum": weight, "counted": True}}
    about = f"Ours: a moving average that includes the batch with a weight of {weight:g}."
    return replace(shuffled(recipe, options=options, **narrowing), name=name, about=about)


def past(name: str, recipe: str, **narrowing: Any) -> Recipe:
    """Return a recipe with ``past``, a moving average of earlier batches alone."""
    about = "Ours: a moving average of the batches before, so that no image depends on another one of its batch."
    return replace(shuffled(recipe, methods=("past",), **narrowing), name=name, about=about)


def poison_past(name: str, **narrowing: Any) -> Recipe:
    """Return a recipe with ``past`` in which every batch is attacked indiscriminately and the poison stays."""
    base = replace(past(name, "worst-case", corruptions=FAMILIES[::2], **narrowing), scenario="cumulative")
    return select_attacks(base, objective="indiscriminate")


def select_attacks(recipe: Recipe, *, objective: str | None = None, gradients: tuple[str, ...] = ()) -> Recipe:
    """Return a recipe with the attacks that have this objective and one of these gradients."""
    attacks = recipe.attacks
    if objective:
        attacks = tuple(attack for attack in attacks if attack.objective == objective)
    if gradients:
        attacks = tuple(attack for attack in attacks if attack.gradient in gradients)
    return replace(recipe, attacks=attacks)


PIECES: dict[str, list[Recipe]] = {
    "no-attack": [shuffled("no-attack", methods=ALL, estimators=DEFENCES, batches=10)],
    "instant": [
        shuffled("targeted-instant", batches=1, seeds=SEEDS),
        shuffled("indiscriminate-instant", batches=1),
        shuffled("indiscriminate-instant", batches=1, methods=("tebn",), seeds=SEEDS[1:]),
    ],
    "worst-case": [
        shuffled("worst-case", estimators=DEFENCES, batches=1),
        select_attacks(
            shuffled("worst-case", estimators=DEFENCES, batches=1, seeds=SEEDS[1:], methods=("tebn",)),
            objective="targeted",
        ),
        shuffled("worst-case", estimators=("mad", "mad_scaled"), batches=1),
    ],
    "in-order": [
        in_file_order("in-order", "targeted-instant", methods=["tebn"], batches=2),
        in_file_order("in-order-noise", "indiscriminate-instant", corruptions=["gaussian_noise"], batches=3),
    ],
    "priors": [
        shuffled("no-attack", methods=("tebn",), estimators=MIXED, batches=50),
        shuffled("frontier", estimators=("image_median", "image_median@0.6"), batches=1, seeds=SEEDS),
    ],
    "memory": [
        moving_average("memory-no-attack", 0.05, "no-attack", methods=("sema",), estimators=LASTING, batches=50),
        past("past-no-attack", "no-attack", estimators=LASTING, batches=50),
        select_attacks(past("past", "memory", estimators=("image_median@0.5",), batches=11), gradients=("exact",)),
        moving_average("memory", 0.05, methods=("sema",), batches=11),
    ],
    "foresight": [
        select_attacks(
            moving_average("foresight", 0.05, methods=("sema",), estimators=("image_median@0.5",), batches=30),
            gradients=("exact",),
        ),
        select_attacks(
            moving_average("foresight", 0.05, methods=("sema",), estimators=("image_median",), batches=30),
            gradients=("exact", "straight_through"),
        ),
        moving_average("foresight-gradients", 0.05, methods=("sema",), estimators=("image_median@0.5",), batches=14),
    ],
    "shares": [
        select_attacks(
            moving_average(f"share-{weight}", weight, methods=("sema",), estimators=("image_median",), batches=13),
            gradients=("exact",),
        )
        for weight in (0.1, 0.2, 0.5)
    ],
    "ablations": [
        shuffled("epsilon", batches=1),
        shuffled("malicious-targeted", batches=1),
        shuffled("malicious-indiscriminate", batches=1, corruptions=FAMILIES),
        replace(
            select_attacks(
                shuffled("worst-case", batches=1, methods=("tebn",), estimators=DEFENCES[1:]), objective="targeted"
            ),
            name="malicious-gradients",
            about="Ours: many malicious images, targeted, and the worst of three gradients.",
            settings=bench.recipes.get("malicious-targeted").narrow(data=["cifar10-c"]).settings[-2:],
        ),
        shuffled("batch-size-targeted", batches=1),
        shuffled("batch-size-indiscriminate", batches=1, corruptions=FAMILIES),
    ],
    "cumulative": [shuffled("cumulative", batches=3, corruptions=FAMILIES[::2])],
    "poison": [
        poison_past("past-cumulative", estimators=LASTING, batches=6),
        select_attacks(
            poison_past("past-long", estimators=("image_median@0.5",), batches=20, seeds=(2,)), gradients=("exact",)
        ),
    ],
}


def main() -> None:
    parser = cli.Parser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("pieces", nargs="*", metavar="PIECE", help=", ".join(PIECES))
    parser.add_argument("--store", type=Path, default=Path("cifar10-c.db"), help="default: %(default)s")
    parser.add_argument("--minutes", type=cli.positive_float, help="stop after this long")
    parser.add_argument("--jobs", type=cli.positive_int, default=1, help="processes (default: 1)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batches", type=cli.positive_int, help="of each stream, instead of what is reported")
    parser.add_argument("--seeds", type=cli.natural_int, nargs="+", help="of the streams: other batches and targets")
    parser.add_argument("--estimators", nargs="+", help="instead of all")
    parser.add_argument(
        "--gradients",
        nargs="+",
        choices=gradients.available(),
        metavar="G",
        help=f"of {', '.join(gradients.available())}",
    )
    parser.add_argument("--smoke", action="store_true", help="on digits and a small model, in seconds")
    parser.add_argument("--seal", type=Path, metavar="FILE", help="copy the results there at the end")
    options = parser.parse_args()
    unknown = [name for name in options.pieces if name not in PIECES]
    if unknown:
        parser.error(f"pieces are {', '.join(PIECES)}, not {unknown[0]}.")
    recipes = [_narrow(recipe, options) for name in options.pieces or PIECES for recipe in PIECES[name]]
    place = bench.Place(device=cli.choose_device(options.device))
    executor = bench.Processes(place, options.jobs) if options.jobs > 1 else None
    began, batches = time.monotonic(), 0

    def print_progress(event: Event) -> None:
        nonlocal batches
        if event.kind == "batch":
            batches += 1
            if batches % 50 == 0:
                print(f"{time.monotonic() - began:5.0f} s  {batches} batches  {event.cell.label}", flush=True)

    done = bench.run(
        recipes,
        options.store,
        place=place,
        executor=executor,
        on_event=print_progress,
        seconds=60 * options.minutes if options.minutes else None,
        command=shlex.join(["python", "experiments/reproduce.py", *sys.argv[1:]]),
    )
    print(f"{batches} batches in {time.monotonic() - began:.0f} s; {'all is done' if done else 'to be continued'}.")
    if options.seal:
        options.seal.unlink(missing_ok=True)
        with bench.Store(options.store, create=False) as store:
            store.seal(options.seal)


def _narrow(recipe: Recipe, options: argparse.Namespace) -> Recipe:
    """Return the recipe with the changes that the options ask for."""
    recipe = recipe.smoke() if options.smoke else recipe
    seeds = tuple(options.seeds) if options.seeds else None
    recipe = recipe.narrow(batches=options.batches, estimators=options.estimators, seeds=seeds)
    if options.gradients and recipe.attacks:
        selected = select_attacks(recipe, gradients=tuple(options.gradients))
        recipe = selected if selected.attacks else recipe
    return recipe


if __name__ == "__main__":
    sys.exit(cli.run_program("reproduce.py", main))
