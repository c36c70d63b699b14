"""Figures 5, 6 and 7: how far malicious images move the centre and σ of each layer, for each estimator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from ..estimators import Estimator
from ..functional import statistics
from .captions import describe, epsilon_label
from .experiment import Experiment, visit_layers
from .numbers import Numbers
from .registry import Figure, register
from .theme import Theme

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

QUANTITIES = {"centre": "centre", "sigma": "σ"}
"""The columns of the two distances, and what they are called."""


def statistic_shift(x: Tensor, estimator: str | Estimator, benign: Tensor) -> tuple[float, float]:
    """Return the L1 distances of centre and σ over all images of a batch from those over its benign images.

    Args:
        x: ``(B, C, *)``, the input of a layer.
        estimator: of centre and variance; σ is the root of the variance.
        benign: ``(B,)`` mask of the benign images.

    >>> import torch
    >>> x = torch.tensor([[0.0], [0.0], [0.0], [8.0]])
    >>> statistic_shift(x, "mean", torch.tensor([True, True, True, False]))[0]
    2.0
    """
    (centre, variance), (own_centre, own_variance) = (statistics(x, estimator, valid=mask) for mask in (None, benign))
    centres = (centre.double() - own_centre.double()).abs().sum().item()
    sigmas = (variance.double().sqrt() - own_variance.double().sqrt()).abs().sum().item()
    return centres, sigmas


def measure(experiment: Experiment) -> Numbers:
    """Return both distances per layer, ε, estimator and batch; ε = 0 is the same batch without attack."""
    settings, rows = experiment.settings, []
    for number in experiment.numbers(experiment.cell(settings.estimators[0])):
        for epsilon in (0.0, *settings.epsilons):
            for name in settings.estimators:
                cell = experiment.cell(name, epsilon=epsilon or 1.0)
                images = experiment.poisoned(cell, number) if epsilon else experiment.batch(cell, number)[0]
                shifts = visit_layers(
                    experiment.unadapted(cell),
                    images,
                    lambda layer, module, x: (
                        x.shape[1],
                        *statistic_shift(x, module.estimator, experiment.benign),
                    ),
                )
                rows += [
                    {
                        "epsilon": epsilon,
                        "estimator": name,
                        "batch": number,
                        "layer": layer,
                        "channels": channels,
                        "centre": centre,
                        "sigma": sigma,
                    }
                    for layer, (channels, centre, sigma) in shifts.items()
                ]
    return Numbers("shift", settings.describe(), rows)


def draw(numbers: Numbers, canvas: FigureBase, theme: Theme) -> None:
    """Draw one panel per quantity and ε, with one line per estimator over the layers."""
    layers, epsilons = numbers.distinct("layer"), [e for e in numbers.distinct("epsilon") if e]
    series = theme.series(numbers.distinct("estimator"))
    if theme.narrow:
        axes = canvas.subplots(len(QUANTITIES) * len(epsilons), 1, squeeze=False, sharex=True)
        axes = axes.reshape(len(QUANTITIES), len(epsilons))
        for line in axes:
            for axis in line[1:]:
                axis.sharey(line[0])
    else:
        axes = canvas.subplots(len(QUANTITIES), len(epsilons), squeeze=False, sharex=True, sharey="row")
    for line, (quantity, label) in zip(axes, QUANTITIES.items(), strict=True):
        for axis, epsilon in zip(line, epsilons, strict=True):
            for name, style in series.items():
                values = [layer_values(numbers, epsilon, name, layer, quantity) for layer in layers]
                means = [sum(v) / len(v) for v in values]
                axis.plot(range(len(layers)), means, **style)
                if len(values[0]) > 1:
                    low, high = [min(v) for v in values], [max(v) for v in values]
                    axis.fill_between(range(len(layers)), low, high, color=style["color"], alpha=0.2, linewidth=0)
                without = [layer_values(numbers, 0.0, name, layer, quantity) for layer in layers]
                means = [sum(v) / len(v) for v in without]
                axis.plot(range(len(layers)), means, color=style["color"], linewidth=0.7, linestyle=":")
            axis.set_yscale("log")
            axis.grid(True, axis="y")
            if theme.narrow or axis is line[0]:
                axis.set_ylabel(f"L1 distance of {label}")
            if theme.narrow or axis in axes[0]:
                axis.set_title(f"ε = {epsilon_label(epsilon)}")
    for axis in axes.ravel()[-1:] if theme.narrow else axes[-1]:
        axis.set_xticks(range(len(layers)), layers, rotation=90)
    handles, labels = axes[0][0].get_legend_handles_labels()
    (reference,) = axes[0][0].plot([], [], color=theme.ink, linewidth=0.7, linestyle=":")
    theme.add_legend(canvas, [*handles, reference], [*labels, "no attack"], across=len(labels) + 1)


def layer_values(numbers: Numbers, epsilon: float, estimator: str, layer: str, quantity: str) -> list[float]:
    """Return the distances of one line at one layer, one per batch."""
    return [row[quantity] for row in numbers.select(epsilon=epsilon, estimator=estimator, layer=layer)]


def size(numbers: Numbers, theme: Theme) -> tuple[float, float]:
    """Return a width and a height; panels that are below each other need the more."""
    epsilons = sum(1 for epsilon in numbers.distinct("epsilon") if epsilon)
    return theme.width, 1.4 + 1.45 * len(QUANTITIES) * epsilons if theme.narrow else 4.4


def caption(numbers: Numbers) -> str:
    """Return the caption."""
    band = " Bands: smallest and largest of the batches." if numbers.settings["batches"] > 1 else ""
    return (
        "L1 distance of centre (top) and σ (bottom) over all images from those over the benign ones, in one forward"
        " pass of the poisoned batch, before each normalisation layer; each estimator under its own attack. Dotted: the"
        f" same batch without attack.{band} {describe(numbers)}"
    )


register(
    "shift",
    Figure(
        title="how far malicious images move centre and σ of each layer",
        paper="5, 6, 7",
        measure=measure,
        draw=draw,
        caption=caption,
        size=size,
        parts=lambda settings: len(settings.epsilons) * len(settings.estimators) * settings.batches,
    ),
)
