"""Would another estimator over images be better than ``image_median``? Four that were tried and rejected.

    python experiments/rejected_estimators.py [--cifar] [--store tried.db]

Each combines the channel means and variances of the images in another way, and is attacked like ``image_median``. Their
exact gradients are smooth; straight-through is the gradient of a mean. Digits take minutes on
a CPU; CIFAR-10-C (``--cifar``) is for a GPU.
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


def image_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the variance of each channel of each image."""
    rows = x.flatten(2) if x.dim() > 2 else x.unsqueeze(2)
    return rows.mean(dim=2), rows.var(dim=2, unbiased=False)


def middle_half(values: Tensor) -> Tensor:
    """Return the middle half of the images' values, sorted."""
    cut = len(values) // 4
    return values.sort(dim=0).values[cut : len(values) - cut]


@medbn.estimators.register("image_trimmed")
def image_trimmed(x: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Means over the middle half of the images; the constant corrects their variance for a normal distribution."""
    means, within = image_moments(x)
    centre = middle_half(means).mean(dim=0)
    return centre, middle_half(within).mean(dim=0) + 7.01 * (middle_half(means) - centre).square().mean(dim=0)


@medbn.estimators.register("image_winsorised")
def image_winsorised(x: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Means over all images, with the outer quarters replaced by the quartiles."""
    means, within = (v.clamp(middle_half(v)[0], middle_half(v)[-1]) for v in image_moments(x))
    centre = means.mean(dim=0)
    return centre, within.mean(dim=0) + 3.35 * (means - centre).square().mean(dim=0)


@medbn.estimators.register("image_groups")
def image_groups(x: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Medians over groups of three images: if a fifth of the images is malicious, half of the groups have none."""
    means, within = (v[: len(v) // 3 * 3].view(-1, 3, *v.shape[1:]).mean(dim=1) for v in image_moments(x))
    centre = means.quantile(0.5, dim=0)
    between = 3**0.5 * estimators.MAD_TO_SIGMA * (means - centre).abs().quantile(0.5, dim=0)
    return centre, within.quantile(0.5, dim=0) + between.square()


@medbn.estimators.register("image_within")
def image_within(x: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """``image_median`` without the variance between images."""
    means, within = image_moments(x)
    return means.quantile(0.5, dim=0), within.quantile(0.5, dim=0)


TRIED = ("mean", "image_median", "image_trimmed", "image_winsorised", "image_groups", "image_within")


def main() -> None:
    parser = cli.Parser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cifar", action="store_true", help="attack a ResNet-26 on CIFAR-10-C instead of digits")
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
        print(f"{name:18}{format_rates(results, name, gradients)}")


def format_rates(results: bench.results.Results, estimator: str, gradients: tuple[str, ...]) -> str:
    """Return the error without attack and the success rates, in per cent, as columns."""
    own = results.select(lambda cell: cell.estimator == estimator)
    rates = []
    for gradient in gradients:
        rates.append(own.select(lambda cell: cell.attack is not None and cell.attack.gradient == gradient).success())  # noqa: B023
    rates.append(own.worst(results.values(lambda cell: cell.attack)))
    shown = [f"{100 * r.value:.0f} ({100 * r.low:.0f}–{100 * r.high:.0f})" if r else "" for r in rates]
    error = own.error("wrong_without")
    return f"{100 * error.value if error else 0:8.1f}  {shown[0]:14}{shown[1]:20}{shown[2]}"


if __name__ == "__main__":
    sys.exit(cli.run_program("rejected_estimators.py", main))
