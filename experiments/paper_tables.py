"""What do the paper's tables say on CIFAR-100-C and ImageNet-C, and what was missing on CIFAR-10-C? Pieces of a run.

    python experiments/paper_tables.py BENCHMARK [PIECE ...] [--store FILE] [--minutes 9] [--jobs 4]

BENCHMARK is cifar10-c, cifar100-c, imagenet-c or digits, which are embedded. Without a piece, all of them run in the
order below: what matters most comes first. Every finished batch is stored at once: run the same command again until it
says that all is done. What is missing is named before anything starts, with the command that gets it. With CUDA's MPS
running, several jobs share a GPU. ``medbn report STORE`` shows the paper's numbers beside what was measured.

Nothing but the digits has been run yet, on a CPU: there are no times of a GPU.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from _every_method import on_cifar10, on_digits
from _pieces import Pieces, run_benchmark, select_attacks, shuffled_recipe
from medbn import bench, cli
from medbn.bench import DEFENCES, Recipe
from medbn.data import find_root
from reproduce import PIECES

EVERY = ("source", "tebn", "tent", "eta", "eata", "sar", "sotta", "sema", "mdia")
OTHERS = ("tent", "eta", "sar", "sotta", "sema", "mdia")
AVERAGING = ("sema", "sotta", "mdia")
LASTING = (*DEFENCES, "image_median@0.5")
WORST = ("mean", "median", "mad", "image_median", "image_median@0.5")
FAMILIES = ("gaussian_noise", "fog", "jpeg_compression")
"""One corruption of each kind, for streams on which poison stays."""
OBJECTIVES = ("targeted", "indiscriminate")
POISONED = ("tebn", "eata", "sotta", "sema")


def worst_case(data: str, objective: str, seeds: tuple[int, ...] = (1,), **narrowing: Any) -> Recipe:
    """Return the three gradients against TeBN with one objective."""
    narrowing = {"methods": ("tebn",), "batches": 1, **narrowing}
    recipe = select_attacks(shuffled_recipe("worst-case", data, seeds, **narrowing), objective=objective)
    # A report shows the attacks of the last run of a name. The runs that CIFAR-10-C has share one.
    return recipe if data == "cifar10-c" else replace(recipe, name=f"{recipe.name}-{objective}")


def past(data: str, batches: int, poisoned: int) -> list[Recipe]:
    """Return ``past`` without attack, which shows what is predicted so anyway, and with poison that stays."""
    anyway = shuffled_recipe("no-attack", data, methods=("past",), estimators=LASTING, batches=batches)
    poison = worst_case(
        data, "indiscriminate", methods=("past",), estimators=LASTING, batches=poisoned, corruptions=FAMILIES
    )
    return [
        replace(anyway, name="past-no-attack", about="Ours: a moving average of the batches before, without attack."),
        replace(
            poison,
            name="past-cumulative",
            scenario="cumulative",
            about="Ours: poison that stays in a moving average of the batches before.",
        ),
    ]


def cumulative(data: str, batches: int) -> list[Recipe]:
    """Return both attacks on one corruption of each kind where the poison stays."""
    narrowing: dict[str, Any] = {"methods": POISONED, "batches": batches, "corruptions": FAMILIES}
    return [shuffled_recipe(f"{objective}-cumulative-per-corruption", data, **narrowing) for objective in OBJECTIVES]


def cifar10() -> Pieces:
    """Return what docs/results/cifar10-c.md lists as missing."""
    data, again = "cifar10-c", ("sar", "sotta")
    return {
        "knowledge": [shuffled_recipe("knowledge", data, (1, 2, 3, 4), batches=1)],
        "architectures": [shuffled_recipe("architectures", data, batches=1)],
        "changed-methods": [
            shuffled_recipe("no-attack", data, methods=again, batches=10),
            shuffled_recipe("targeted-instant", data, (1, 2, 3, 4), methods=again, batches=1),
            shuffled_recipe("indiscriminate-instant", data, methods=again, batches=1),
            shuffled_recipe("cumulative", data, methods=again, batches=3, corruptions=FAMILIES),
        ],
        "frost": [
            *(recipe.narrow(corruptions=("frost",)) for name in ("instant", "worst-case") for recipe in PIECES[name]),
            shuffled_recipe(
                "no-attack", data, methods=tuple(m for m in EVERY if m != "eata"), batches=10, corruptions=("frost",)
            ),
            shuffled_recipe("no-attack", data, methods=("tebn",), batches=50, corruptions=("frost",)),
            past(data, batches=50, poisoned=6)[0].narrow(corruptions=("frost",)),
        ],
        "cumulative": [shuffled_recipe("cumulative", data, batches=3)],
        "sizes": [shuffled_recipe(f"{name}-indiscriminate", data, batches=1) for name in ("malicious", "batch-size")],
        "worst-case": [
            worst_case(data, "targeted", (2, 3, 4), estimators=("mad", "image_median@0.5")),
            worst_case(data, "indiscriminate", estimators=("image_median@0.5",)),
        ],
        "past": past(data, batches=50, poisoned=6),
        "every-method": on_cifar10(),
    }


def digits() -> Pieces:
    """Return what docs/results/every-method.md has of the embedded digits."""
    return {"every-method": on_digits()}


def cifar100() -> Pieces:
    """Return the paper's tables on CIFAR-100-C, and the worst of three gradients."""
    data = "cifar100-c"
    return {
        "no-attack": [shuffled_recipe("no-attack", data, methods=EVERY, batches=10)],
        "instant": [
            shuffled_recipe("targeted-instant", data, (1, 2, 3, 4), methods=("tebn",), batches=1),
            shuffled_recipe("targeted-instant", data, (1, 2), methods=OTHERS, batches=1),
            shuffled_recipe("indiscriminate-instant", data, batches=1),
        ],
        "worst-case": [
            worst_case(data, "targeted", (1, 2, 3, 4), estimators=WORST),
            worst_case(data, "indiscriminate", estimators=WORST),
        ],
        "past": past(data, batches=50, poisoned=6),
        "cumulative": cumulative(data, batches=3),
        "mad": [shuffled_recipe("mad", data, batches=1)],
        "sizes": [
            shuffled_recipe(f"{n}-{o}", data, batches=1) for n in ("malicious", "batch-size") for o in OBJECTIVES
        ],
        "architectures": [shuffled_recipe("architectures", data, batches=1)],
    }


def imagenet() -> Pieces:
    """Return the paper's tables on ImageNet-C, and the worst of three gradients, on 1,000 images of each corruption.

    EATA weighs parameters by source images: as here, its authors take clean validation images.
    """
    data = "imagenet-c"
    others = ("straight_through", "smooth")
    pieces = {
        "no-attack": [shuffled_recipe("no-attack", data, methods=EVERY, batches=5)],
        "instant": [
            shuffled_recipe("targeted-instant", data, (1, 2), methods=("tebn",), batches=1),
            select_attacks(worst_case(data, "targeted", estimators=DEFENCES), gradients=others),
            shuffled_recipe("targeted-instant", data, methods=AVERAGING, batches=1),
            shuffled_recipe("indiscriminate-instant", data, methods=("tebn",), batches=1),
        ],
        "worst-case": [worst_case(data, objective, estimators=WORST) for objective in OBJECTIVES],
        "past": past(data, batches=5, poisoned=3),
        "cumulative": cumulative(data, batches=2),
        "mad": [shuffled_recipe("mad", data, batches=1)],
    }
    return {name: [_with_validation_images(recipe) for recipe in recipes] for name, recipes in pieces.items()}


def _with_validation_images(recipe: Recipe) -> Recipe:
    """Return a recipe whose source images are the clean validation images."""
    clean = str(find_root() / "imagenet" / "val")
    settings = tuple(replace(s, clean=clean, weights=bench.weights_path(s)) for s in recipe.settings)
    return replace(recipe, settings=settings)


BENCHMARKS = {"cifar10-c": cifar10, "cifar100-c": cifar100, "imagenet-c": imagenet, "digits": digits}


def main() -> int:
    return run_benchmark(__doc__, BENCHMARKS)


if __name__ == "__main__":
    sys.exit(cli.run_program("paper_tables.py", main))
