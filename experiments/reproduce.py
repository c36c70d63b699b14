"""What do the attacks and defences do on CIFAR-10-C? All stored experiments, in pieces of minutes.

    python experiments/reproduce.py [PIECE ...] [--store cifar10-c.db] [--minutes 9] [--jobs 4]

Without a piece, all of them run in the order below: 78 minutes on an H200 with four to six processes. Every finished
batch is stored at once: run the same command again until it says that all is done. It needs the corrupted images
(``medbn data generate cifar10-c``), the training images for EATA, and ``resnet26-cifar10.safetensors`` in the data
folder's ``models``. Every stream is shuffled with a seed, each corruption in an order of its own, so that the first
batches of each contain other images. ``--seal FILE`` copies the results without the states from which streams continue.
With CUDA's MPS running, several jobs share a GPU.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from _pieces import add_options, run, select_attacks, shuffled_recipe
from medbn import bench, cli
from medbn.bench import DEFENCES, Recipe

ALL = ("source", "tebn", "tent", "eta", "eata", "sar", "sotta", "sema", "mdia")
FAMILIES = ("gaussian_noise", "defocus_blur", "fog", "contrast", "jpeg_compression")
"""One corruption of each kind, for experiments that would take too long with all fifteen."""
SEEDS = (1, 2, 3, 4)
"""Each gives other batches with other targets."""
LASTING = (*DEFENCES, "image_median@0.5")
MIXED = (*DEFENCES, "mean@0.6", "median@0.6", *(f"image_median@{prior}" for prior in (0.5, 0.6, 0.7, 0.8)))


def in_file_order(name: str, recipe: str, **narrowing: Any) -> Recipe:
    """Return a recipe whose streams are in the order of the file, where all corruptions have the same targets."""
    base = bench.recipes.get(recipe).narrow(data=["cifar10-c"], **narrowing)
    about = f"{base.about} In the order of the file: all corruptions have the same targets."
    return replace(base, name=name, about=about)


def moving_average(name: str, weight: float, recipe: str = "memory", **narrowing: Any) -> Recipe:
    """Return a recipe with a moving average that includes the batch itself with a weight."""
    options = {"sema": {"momentum": weight, "counted": True}}
    about = f"Ours: a moving average that includes the batch with a weight of {weight:g}."
    return replace(shuffled_recipe(recipe, options=options, **narrowing), name=name, about=about)


def past(name: str, recipe: str, **narrowing: Any) -> Recipe:
    """Return a recipe with ``past``, a moving average of earlier batches alone."""
    about = "Ours: a moving average of the batches before, so that no image depends on another one of its batch."
    return replace(shuffled_recipe(recipe, methods=("past",), **narrowing), name=name, about=about)


def poison_past(name: str, **narrowing: Any) -> Recipe:
    """Return a recipe with ``past`` in which every batch is attacked indiscriminately and the poison stays."""
    base = replace(past(name, "worst-case", corruptions=FAMILIES[::2], **narrowing), scenario="cumulative")
    return select_attacks(base, objective="indiscriminate")


PIECES: dict[str, list[Recipe]] = {
    "no-attack": [shuffled_recipe("no-attack", methods=ALL, estimators=DEFENCES, batches=10)],
    "instant": [
        shuffled_recipe("targeted-instant", batches=1, seeds=SEEDS),
        shuffled_recipe("indiscriminate-instant", batches=1),
        shuffled_recipe("indiscriminate-instant", batches=1, methods=("tebn",), seeds=SEEDS[1:]),
    ],
    "worst-case": [
        shuffled_recipe("worst-case", estimators=DEFENCES, batches=1),
        select_attacks(
            shuffled_recipe("worst-case", estimators=DEFENCES, batches=1, seeds=SEEDS[1:], methods=("tebn",)),
            objective="targeted",
        ),
        shuffled_recipe("worst-case", estimators=("mad", "mad_scaled"), batches=1),
    ],
    "in-order": [
        in_file_order("in-order", "targeted-instant", methods=["tebn"], batches=2),
        in_file_order("in-order-noise", "indiscriminate-instant", corruptions=["gaussian_noise"], batches=3),
    ],
    "priors": [
        shuffled_recipe("no-attack", methods=("tebn",), estimators=MIXED, batches=50),
        shuffled_recipe("frontier", estimators=("image_median", "image_median@0.6"), batches=1, seeds=SEEDS),
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
        shuffled_recipe("epsilon", batches=1),
        shuffled_recipe("malicious-targeted", batches=1),
        shuffled_recipe("malicious-indiscriminate", batches=1, corruptions=FAMILIES),
        replace(
            select_attacks(
                shuffled_recipe("worst-case", batches=1, methods=("tebn",), estimators=DEFENCES[1:]),
                objective="targeted",
            ),
            name="malicious-gradients",
            about="Ours: many malicious images, targeted, and the worst of three gradients.",
            settings=bench.recipes.get("malicious-targeted").narrow(data=["cifar10-c"]).settings[-2:],
        ),
        shuffled_recipe("batch-size-targeted", batches=1),
        shuffled_recipe("batch-size-indiscriminate", batches=1, corruptions=FAMILIES),
    ],
    "cumulative": [shuffled_recipe("cumulative", batches=3, corruptions=FAMILIES[::2])],
    "poison": [
        poison_past("past-cumulative", estimators=LASTING, batches=6),
        select_attacks(
            poison_past("past-long", estimators=("image_median@0.5",), batches=20, seeds=(2,)), gradients=("exact",)
        ),
    ],
}


def main() -> int:
    parser = cli.Parser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("pieces", nargs="*", metavar="PIECE", help=", ".join(PIECES))
    add_options(parser, "cifar10-c.db")
    return run(parser, parser.parse_args(), PIECES)


if __name__ == "__main__":
    sys.exit(cli.run_program("reproduce.py", main))
