"""Estimators over images that were tried and not kept, against the attacks: digits on a CPU, or CIFAR-10-C on a GPU.

    python experiments/rejected_estimators.py [--cifar] [--store tried.db]

Each takes the images' channel means and variances, as ``image_median`` does, and makes something else of them. Their
exact gradient is smooth already; straight-through is that of a mean.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

import medbn
from medbn import bench, cli, estimators
from medbn.bench import DIGITS, Attack, recipes


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Means and variances of images, by channel."""
    rows = x.flatten(2) if x.dim() > 2 else x.unsqueeze(2)
    return rows.mean(dim=2), rows.var(dim=2, unbiased=False)


def middle(values: Tensor) -> Tensor:
    """The middle half of the images."""
    cut = len(values) // 4
    return values.sort(dim=0).values[cut : len(values) - cut]


@medbn.estimators.register("image_trimmed")
def image_trimmed(x: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Means over the middle half of the images; the constant makes up for that half of a normal distribution."""
    means, within = moments(x)
    centre = middle(means).mean(dim=0)
    return centre, middle(within).mean(dim=0) + 7.01 * (middle(means) - centre).square().mean(dim=0)


@medbn.estimators.register("image_winsorised")
def image_winsorised(x: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Means over all images, the outer quarters of which count as the quartiles."""
    means, within = (v.clamp(middle(v)[0], middle(v)[-1]) for v in moments(x))
    centre = means.mean(dim=0)
    return centre, within.mean(dim=0) + 3.35 * (means - centre).square().mean(dim=0)


@medbn.estimators.register("image_groups")
def image_groups(x: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Medians over groups of three images of their means: half of the groups have no malicious one among a fifth."""
    means, within = (v[: len(v) // 3 * 3].view(-1, 3, *v.shape[1:]).mean(dim=1) for v in moments(x))
    centre = means.quantile(0.5, dim=0)
    between = 3**0.5 * estimators.MAD_TO_SIGMA * (means - centre).abs().quantile(0.5, dim=0)
    return centre, within.quantile(0.5, dim=0) + between.square()


@medbn.estimators.register("image_within")
def image_within(x: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """A stricter variance: ``image_median`` without the part between images."""
    means, within = moments(x)
    return means.quantile(0.5, dim=0), within.quantile(0.5, dim=0)


TRIED = ("mean", "image_median", "image_trimmed", "image_winsorised", "image_groups", "image_within")


def main() -> None:
    parser = cli.Parser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cifar", action="store_true", help="CIFAR-10-C and a ResNet-26 instead of digits")
    parser.add_argument(
        "--estimators", nargs="+", choices=TRIED, default=TRIED, metavar="E", help=f"of {', '.join(TRIED)}"
    )
    parser.add_argument("--store", type=Path, default=Path("tried.db"), help="default: %(default)s")
    options = parser.parse_args()
    gradients = ("exact", "straight_through")
    if options.cifar:
        recipe = recipes.get("worst-case").narrow(methods=["tebn"], batches=1, seeds=(1,))
        kinds = tuple(Attack("targeted", gradient=gradient) for gradient in gradients)
    else:
        setting = replace(DIGITS, batch_size=100, malicious=20)
        recipe = replace(recipes.get("worst-case"), settings=(setting,), methods=("tebn",), batches=7)
        recipe = recipe.narrow(corruptions=("snow", "fog", "jpeg_compression"))
        kinds = tuple(Attack("targeted", steps=40, step_size=2.5 / 255, gradient=g) for g in gradients)
    recipe = replace(recipe, name="tried", about="Estimators that were not kept.", attacks=kinds)
    recipe = recipe.narrow(estimators=options.estimators)
    place = bench.Place(device="cuda" if torch.cuda.is_available() else "cpu")
    bench.run(
        recipe,
        options.store,
        place=place,
        command=shlex.join(["python", "experiments/rejected_estimators.py", *sys.argv[1:]]),
    )
    with bench.Store(options.store) as store:
        (results,) = bench.results.read(store, ["tried"])
    print(f"{'estimator':18}{'error':>8}  {'exact':14}{'straight-through':20}{'worst':14}")
    for name in options.estimators:
        print(f"{name:18}{described(results, name, gradients)}")


def described(results: bench.results.Results, estimator: str, gradients: tuple[str, ...]) -> str:
    """The error without attack and the success rates, in per cent."""
    own = results.select(lambda cell: cell.estimator == estimator)
    rates = []
    for gradient in gradients:
        rates.append(own.select(lambda cell: cell.attack is not None and cell.attack.gradient == gradient).success())  # noqa: B023
    shown = [f"{100 * r.value:.0f} ({100 * r.low:.0f}–{100 * r.high:.0f})" if r else "" for r in (*rates, own.worst())]
    error = own.error("wrong_without")
    return f"{100 * error.value if error else 0:8.1f}  {shown[0]:14}{shown[1]:20}{shown[2]}"


if __name__ == "__main__":
    sys.exit(cli.run_program("rejected_estimators.py", main))
