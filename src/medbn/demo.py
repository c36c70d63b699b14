"""Poison a batch by hand and watch what three kinds of normalisation do to everybody else's predictions.

    python -m medbn.demo [--seed N]

A small network is trained on generated images, then serves a batch of them under a change of lighting, normalising with
the batch's own statistics as test-time adaptation does. Some images of the batch are then poisoned; the table shows how
far that moves the statistics of the first layer, and what becomes of the images that nobody touched.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import medbn

CLASSES, IMAGES, SIZE = 10, 200, 16
ESTIMATORS = {"mean": "BatchNorm", "median": "MedBN", "image_median": "image_median"}


def main(arguments: list[str] | None = None) -> None:
    """Train, poison, print."""
    parser = argparse.ArgumentParser(prog="python -m medbn.demo", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="seed of images, weights and poison (default: 0)")
    generator = torch.Generator().manual_seed(parser.parse_args(arguments).seed)

    draw = images_of(torch.randn(CLASSES, 3, SIZE, SIZE, generator=generator), generator)
    model = train(draw, generator)
    x, labels = draw(IMAGES)
    x = 0.6 * x + 0.5  # dimmer, and hazy: the statistics of training no longer fit
    print(f"{IMAGES} images of {CLASSES} classes in changed light; error with the statistics of training: ", end="")
    print(f"{error(predict(medbn.convert(model, policy='source'), x)[0], labels):.1f} %")

    few = IMAGES // 5
    show(model, x, labels, few, f"{few} of {IMAGES} images shifted by 3 standard deviations", lambda p: p + 3 * x.std())
    show(model, x, labels, 1, f"1 of {IMAGES} images multiplied by 1e6", lambda p: p * 1e6)
    print(
        "\nBatchNorm's centre and variance are means: they go wherever the poison wants.\n"
        "MedBN's centre holds under both. Its variance is still a mean, so one huge image moves it without bound and\n"
        "flattens everybody's activations: MedBN is no protection against the second poison.\n"
        "image_median takes both from medians over images, and holds under both."
    )


def images_of(patterns: Tensor, generator: torch.Generator) -> Callable[[int], tuple[Tensor, Tensor]]:
    """A source of labelled images: a smooth pattern per class, at varying contrast, in noise."""
    smooth = F.avg_pool2d(patterns, 5, stride=1, padding=2) * 5

    def draw(count: int) -> tuple[Tensor, Tensor]:
        labels = torch.randint(CLASSES, (count,), generator=generator)
        contrast = 0.5 + torch.rand(count, 1, 1, 1, generator=generator)
        noise = torch.randn(count, *patterns.shape[1:], generator=generator)
        return contrast * smooth[labels] + 3.0 * noise, labels

    return draw


def train(draw: Callable[[int], tuple[Tensor, Tensor]], generator: torch.Generator, steps: int = 120) -> nn.Module:
    """A plain torch network with BatchNorm, trained in a few seconds."""
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.kaiming_normal_(parameter, generator=generator)
    nn.init.zeros_(cast(nn.Linear, model[-1]).bias)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        x, labels = draw(100)
        optimizer.zero_grad()
        F.cross_entropy(model(x), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model.eval()


def show(
    model: nn.Module, x: Tensor, labels: Tensor, count: int, title: str, poison: Callable[[Tensor], Tensor]
) -> None:
    """One table: the batch with its last ``count`` images poisoned, against the batch without poison."""
    poisoned = x.clone()
    poisoned[-count:] = poison(x[-count:])
    others = slice(0, len(x) - count)
    print(f"\n{title}; the other {len(x) - count}:")
    print(f"  {'':13} {'centre moves':>13} {'variance grows':>15} {'predictions that change':>24} {'error':>18}")
    for estimator, name in ESTIMATORS.items():
        medbn.convert(model, estimator, "batch")
        before, (centre, variance) = predict(model, x)
        after, (poisoned_centre, poisoned_variance) = predict(model, poisoned)
        moved = ((poisoned_centre - centre).square() / variance).mean().sqrt().item()
        grown = (poisoned_variance / variance).mean().item()
        changed = 100 * (before[others] != after[others]).float().mean().item()
        errors = f"{error(before[others], labels[others]):.1f} → {error(after[others], labels[others]):.1f} %"
        print(f"  {name:13} {moved:11.3g} σ {grown:13.3g} × {changed:22.1f} % {errors:>18}")


def predict(model: nn.Module, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Predicted classes, and the centre and variance that the first layer used."""
    with torch.no_grad(), medbn.capture(model, inputs=False) as seen:
        return model(x).argmax(dim=1), (seen[0].centre, seen[0].variance)


def error(predictions: Tensor, labels: Tensor) -> float:
    """Per cent of wrong predictions."""
    return 100 * (predictions != labels).float().mean().item()


if __name__ == "__main__":
    main()
