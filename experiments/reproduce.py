"""Everything that docs/results.md reports: the paper's experiments on CIFAR-10-C, and ours, in pieces of minutes.

    python experiments/reproduce.py [PIECE ...] [--store cifar10-c.db] [--minutes 9] [--jobs 4]

Without a piece, all of them, in this order. Whatever is finished is kept at once: run the same command again until it
says that all is done. It needs the corrupted images (``medbn data generate cifar10-c``), the training images for
EATA, and ``resnet26-cifar10.safetensors`` in the data folder's ``models``. Every stream is shuffled with a seed, each
corruption in an order of its own, so that few batches of each are of many different images. ``--seal FILE`` copies
the results without what is needed to continue. With CUDA's MPS running, several jobs share a GPU.
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

from medbn import bench, cli
from medbn.bench import Event, Recipe
from medbn.bench.recipes import GRADIENTS

DEFENCES = ("mean", "median", "image_median")
ALL = ("source", "tebn", "tent", "eta", "eata", "sar", "sotta", "sema", "mdia")
FAMILIES = ("gaussian_noise", "defocus_blur", "fog", "contrast", "jpeg_compression")
"""A corruption of each kind, where there is no time for all."""
SEEDS = (1, 2, 3, 4)
"""Of the streams: other batches, other targets."""
LASTING = (*DEFENCES, "image_median@0.5")
MIXED = (*DEFENCES, "mean@0.6", "median@0.6", *(f"image_median@{prior}" for prior in (0.5, 0.6, 0.7, 0.8)))


def narrowed(name: str, seeds: tuple[int, ...] = (1,), **given: Any) -> Recipe:
    """A recipe on CIFAR-10-C, shuffled."""
    return bench.recipes.get(name).narrow(data=["cifar10-c"], seeds=seeds, **given)


def remembering(name: str, share: float, recipe: str = "memory", **given: Any) -> Recipe:
    """A moving average in which a batch has that share."""
    options = {"sema": {"momentum": share, "counted": True}}
    about = f"Ours: a moving average that includes the batch with a weight of {share:g}."
    return replace(narrowed(recipe, options=options, **given), name=name, about=about)


def past(name: str, recipe: str, **given: Any) -> Recipe:
    """Answers with the batches before."""
    about = "Ours: a moving average of the batches before, so that no image depends on another one of its batch."
    return replace(narrowed(recipe, methods=("past",), **given), name=name, about=about)


def poisoned(name: str, **given: Any) -> Recipe:
    """The same, every batch poisoned against everybody, by three gradients."""
    found = replace(past(name, "worst-case", corruptions=FAMILIES[::2], **given), scenario="cumulative")
    return with_attacks(found, objective="indiscriminate")


def with_attacks(recipe: Recipe, *, objective: str | None = None, gradients: tuple[str, ...] = ()) -> Recipe:
    """Only some of the attacks."""
    kept = recipe.attacks
    if objective:
        kept = tuple(attack for attack in kept if attack.objective == objective)
    if gradients:
        kept = tuple(attack for attack in kept if attack.gradient in gradients)
    return replace(recipe, attacks=kept)


def in_order(name: str, recipe: str, **given: Any) -> Recipe:
    """Streams in the order of the file, where all corruptions have the same targets."""
    found = bench.recipes.get(recipe).narrow(data=["cifar10-c"], **given)
    return replace(
        found, name=name, about=f"{found.about} In the order of the file: all corruptions have the same targets."
    )


PIECES: dict[str, list[Recipe]] = {
    "no-attack": [narrowed("no-attack", methods=ALL, estimators=DEFENCES, batches=10)],
    "instant": [
        narrowed("targeted-instant", batches=1, seeds=SEEDS),
        narrowed("indiscriminate-instant", batches=1),
        narrowed("indiscriminate-instant", batches=1, methods=("tebn",), seeds=SEEDS[1:]),
    ],
    "worst-case": [
        narrowed("worst-case", estimators=DEFENCES, batches=1),
        with_attacks(
            narrowed("worst-case", estimators=DEFENCES, batches=1, seeds=SEEDS[1:], methods=("tebn",)),
            objective="targeted",
        ),
        narrowed("worst-case", estimators=("mad", "mad_scaled"), batches=1),
    ],
    "in-order": [
        in_order("in-order", "targeted-instant", methods=["tebn"], batches=2),
        in_order("in-order-noise", "indiscriminate-instant", corruptions=["gaussian_noise"], batches=3),
    ],
    "priors": [
        narrowed("no-attack", methods=("tebn",), estimators=MIXED, batches=50),
        narrowed("frontier", estimators=("image_median", "image_median@0.6"), batches=1, seeds=SEEDS),
    ],
    "memory": [
        remembering("memory-no-attack", 0.05, "no-attack", methods=("sema",), estimators=LASTING, batches=50),
        past("past-no-attack", "no-attack", estimators=LASTING, batches=50),
        with_attacks(past("past", "memory", estimators=("image_median@0.5",), batches=11), gradients=("exact",)),
        remembering("memory", 0.05, methods=("sema",), batches=11),
    ],
    "foresight": [
        with_attacks(
            remembering("foresight", 0.05, methods=("sema",), estimators=("image_median@0.5",), batches=30),
            gradients=("exact",),
        ),
        with_attacks(
            remembering("foresight", 0.05, methods=("sema",), estimators=("image_median",), batches=30),
            gradients=("exact", "straight_through"),
        ),
        remembering("foresight-gradients", 0.05, methods=("sema",), estimators=("image_median@0.5",), batches=14),
    ],
    "shares": [
        with_attacks(
            remembering(f"share-{share}", share, methods=("sema",), estimators=("image_median",), batches=13),
            gradients=("exact",),
        )
        for share in (0.1, 0.2, 0.5)
    ],
    "ablations": [
        narrowed("epsilon", batches=1),
        narrowed("malicious-targeted", batches=1),
        narrowed("malicious-indiscriminate", batches=1, corruptions=FAMILIES),
        replace(
            with_attacks(
                narrowed("worst-case", batches=1, methods=("tebn",), estimators=DEFENCES[1:]), objective="targeted"
            ),
            name="malicious-gradients",
            about="Ours: many malicious images, targeted, and the worst of three gradients.",
            settings=bench.recipes.get("malicious-targeted").narrow(data=["cifar10-c"]).settings[-2:],
        ),
        narrowed("batch-size-targeted", batches=1),
        narrowed("batch-size-indiscriminate", batches=1, corruptions=FAMILIES),
    ],
    "cumulative": [narrowed("cumulative", batches=3, corruptions=FAMILIES[::2])],
    "poison": [
        poisoned("past-cumulative", estimators=LASTING, batches=6),
        with_attacks(
            poisoned("past-long", estimators=("image_median@0.5",), batches=20, seeds=(2,)), gradients=("exact",)
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
    parser.add_argument("--gradients", nargs="+", choices=GRADIENTS, metavar="G", help=f"of {', '.join(GRADIENTS)}")
    parser.add_argument("--smoke", action="store_true", help="on digits and a small model, in seconds")
    parser.add_argument("--seal", type=Path, metavar="FILE", help="copy the results there at the end")
    options = parser.parse_args()
    wrong = [name for name in options.pieces if name not in PIECES]
    if wrong:
        parser.error(f"pieces are {', '.join(PIECES)}, not {wrong[0]}.")
    recipes = [_chosen(recipe, options) for name in options.pieces or PIECES for recipe in PIECES[name]]
    place = bench.Place(device=cli.choose_device(options.device))
    executor = bench.Processes(place, options.jobs) if options.jobs > 1 else None
    began, batches = time.monotonic(), 0

    def report(event: Event) -> None:
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
        on_event=report,
        seconds=60 * options.minutes if options.minutes else None,
        command=shlex.join(["python", "experiments/reproduce.py", *sys.argv[1:]]),
    )
    print(f"{batches} batches in {time.monotonic() - began:.0f} s; {'all is done' if done else 'to be continued'}.")
    if options.seal:
        options.seal.unlink(missing_ok=True)
        with bench.Store(options.store, create=False) as store:
            store.seal(options.seal)


def _chosen(recipe: Recipe, options: argparse.Namespace) -> Recipe:
    recipe = recipe.smoke() if options.smoke else recipe
    seeds = tuple(options.seeds) if options.seeds else None
    recipe = recipe.narrow(batches=options.batches, estimators=options.estimators, seeds=seeds)
    if options.gradients and recipe.attacks:
        chosen = with_attacks(recipe, gradients=tuple(options.gradients))
        recipe = chosen if chosen.attacks else recipe
    return recipe


if __name__ == "__main__":
    sys.exit(cli.run_program("reproduce.py", main))
