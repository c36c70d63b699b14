"""Figures 3a and 3b: the entropy of each image against the norm of its gradient."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..methods import Adapter, Predictions
from .captions import describe
from .experiment import Experiment, OnStep, ignore
from .numbers import Numbers
from .registry import Figure, register
from .settings import Settings
from .theme import COLUMN, MANY, PAGE, Theme, estimator_label

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

OBJECTIVES = ("targeted", "indiscriminate")
GROUPS = ("benign", "malicious")
QUANTITIES = ("entropy", "norm")
SMALLEST = 1e-12
"""Smaller norms are drawn here: zero has no place on a logarithmic axis."""
Z = 1.959963984540054
"""Of a 95 % interval."""


def measure_images(adapter: Adapter, images: Tensor, on_step: OnStep = ignore) -> tuple[Tensor, Tensor]:
    """Return the entropy of each image's prediction, and the norm of that entropy's gradient; change nothing.

    The gradient is with respect to the affine parameters of all robust layers. It goes through the statistics of the
    batch, because no image has a prediction without the others: it is the derivative of one prediction of the batch as
    it is served. Each image takes one backward pass.

    Args:
        adapter: the adapted model, in the state that is measured.
        images: a batch, with one prediction for each image.
        on_step: called after every backward pass.
    """
    surrogate = adapter.surrogate()
    owned = {id(parameter) for layer in adapter.layers.values() for parameter in layer.parameters(recurse=False)}
    affine = {
        name: surrogate.tensors.get(name, parameter).detach().clone().requires_grad_()
        for name, parameter in adapter.model.named_parameters()
        if id(parameter) in owned
    }
    if not affine:
        raise ValueError(f"{type(adapter.model).__name__} has no affine parameters to take the gradient of.")
    with torch.enable_grad():
        logits = surrogate.with_tensors({**surrogate.tensors, **affine})(images)
        entropy = Predictions.of(logits).entropy()
    if len(entropy) != len(images):
        raise ValueError(f"expected one prediction for each of {len(images)} images, got {len(entropy)}.")
    parameters, norms = list(affine.values()), []
    for number, image in enumerate(entropy, 1):
        gradients = torch.autograd.grad(image, parameters, retain_graph=True)
        norms.append(torch.stack([gradient.double().square().sum() for gradient in gradients]).sum().sqrt())
        on_step("gradients", number, len(entropy))
    return entropy.detach(), torch.stack(norms).to(entropy.dtype)


def precede(first: Tensor, second: Tensor) -> float:
    """Return the probability that a value of ``first`` is below one of ``second``; equal values count half.

    It is 0.5 where both are alike, and 1 where all of ``first`` are below: the area under the ROC curve.

    >>> precede(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 3.0]))
    0.875
    """
    below = (first.unsqueeze(1) < second).double() + (first.unsqueeze(1) == second).double() / 2
    return below.mean().item()


def null_interval(first: int, second: int) -> tuple[float, float]:
    """Return where ``precede`` lies with 95 % probability if two groups of these sizes are alike.

    The normal approximation of the rank-sum test, within 0 and 1: variance (n + m + 1) / (12 n m).

    >>> [round(limit, 3) for limit in null_interval(40, 160)]
    [0.4, 0.6]
    """
    half = Z * math.sqrt((first + second + 1) / (12 * first * second))
    return max(0.0, 0.5 - half), min(1.0, 0.5 + half)


def measure(experiment: Experiment) -> Numbers:
    """Return, for each objective, the medians of both quantities and how often malicious images have the lower one.

    ``different`` counts the malicious images that differ from each other: an attack that starts all of them from the
    same grey image follows the same gradient for all, so they stay the same image. ``alike_low`` and ``alike_high``
    are where the ``_lower`` columns would lie if malicious images were like benign ones, given that many images.
    """
    settings, rows, points = experiment.settings, [], {}
    benign = experiment.benign.cpu()
    for objective in compared_objectives(settings):
        values: dict[str, list[Tensor]] = {name: [] for name in QUANTITIES}
        different = 0
        cell = experiment.cell(settings.estimators[0], objective=objective, epsilon=settings.epsilons[0])
        for number in experiment.numbers(cell):
            poisoned = experiment.poisoned(cell, number)
            different += len(np.unique(poisoned[experiment.malicious].flatten(1).cpu().numpy(), axis=0))
            measured = measure_images(experiment.unadapted(cell), poisoned, experiment.on_step)
            for name, one in zip(QUANTITIES, measured, strict=True):
                values[name].append(one.cpu())
        both = {name: torch.cat(one) for name, one in values.items()}
        masks = {"benign": benign.repeat(settings.batches), "malicious": ~benign.repeat(settings.batches)}
        points[objective] = {
            group: {name: both[name][mask].tolist() for name in QUANTITIES} for group, mask in masks.items()
        }
        rows.append({**_summarise(objective, both, masks), "different": different})
        rows[-1]["alike_low"], rows[-1]["alike_high"] = null_interval(different, rows[-1]["benign"])
    return Numbers("entropy-gradient", describe_objectives(settings), rows, points)


def compared_objectives(settings: Settings) -> tuple[str, ...]:
    """Return the objectives of a figure that compares them."""
    return settings.objectives or OBJECTIVES


def describe_objectives(settings: Settings) -> dict[str, Any]:
    """Return what a figure of several objectives, one estimator and one ε was measured on."""
    objective = " and ".join(compared_objectives(settings))
    first = {"estimators": list(settings.estimators[:1]), "epsilons": list(settings.epsilons[:1])}
    return {**settings.describe(), "objective": objective, **first}


def _summarise(objective: str, values: dict[str, Tensor], masks: dict[str, Tensor]) -> dict[str, Any]:
    row: dict[str, Any] = {"objective": objective, **{group: int(mask.sum()) for group, mask in masks.items()}}
    for name, one in values.items():
        for group, mask in masks.items():
            row[f"{name}_{group}"] = one[mask].median().item()
        row[f"{name}_lower"] = precede(one[masks["malicious"]], one[masks["benign"]])
    return row


def draw(numbers: Numbers, canvas: FigureBase, theme: Theme) -> None:
    """Draw one scatter plot per objective, with the densities of both groups along its edges."""
    objectives = numbers.distinct("objective")
    looks: dict[str, dict[str, Any]] = {
        "benign": {"color": theme.benign, "marker": "o", "s": 8, "linewidths": 0, "alpha": 0.8},
        "malicious": {"color": theme.malicious, "marker": "x", "s": 14, "linewidths": 0.9},
    }
    lines: dict[str, dict[str, Any]] = {
        "benign": {"color": theme.benign, "linestyle": "--"},
        "malicious": {"color": theme.malicious},
    }
    parts = canvas.subfigures(*theme.arrange(len(objectives)), squeeze=False).ravel()
    for part, objective in zip(parts, objectives, strict=True):
        (top, corner), (main, side) = part.subplots(
            2, 2, sharex="col", sharey="row", width_ratios=(5, 1), height_ratios=(1, 5)
        )
        corner.set_axis_off()
        points = {
            group: {"entropy": np.asarray(one["entropy"]), "norm": np.maximum(one["norm"], SMALLEST)}
            for group, one in numbers.details[objective].items()
        }
        for group in GROUPS:
            x, y = points[group]["norm"], points[group]["entropy"]
            main.scatter(x, y, label=group, rasterized=len(x) > MANY, **looks[group])
        main.set_xscale("log")
        main.set_xlabel("norm of the gradient")
        main.set_ylabel("entropy (nats)")
        main.grid(True)
        for group, (where, height) in densities({g: np.log10(points[g]["norm"]) for g in GROUPS}).items():
            top.plot(10.0**where, height, **lines[group])
        for group, (where, height) in densities({g: points[g]["entropy"] for g in GROUPS}).items():
            side.plot(height, where, **lines[group])
        top.set_title(f"{objective} attack")
        for axis in (top, side):
            axis.set_frame_on(False)
            axis.tick_params(which="both", left=False, bottom=False, labelleft=False, labelbottom=False)
        highest = max(float(points[group]["entropy"].max()) for group in GROUPS)
        main.set_ylim(-0.03 * highest, 1.08 * highest)
        top.set_ylim(bottom=0)
        side.set_xlim(left=0)
    handles, labels = main.get_legend_handles_labels()
    theme.add_legend(canvas, handles, labels, across=len(labels))


def densities(groups: dict[str, np.ndarray]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return places and, for each group of values, the density there: a Gaussian kernel estimate of one width for all.

    The width is by Scott's rule for all values together, so that equal values are a narrow bump and not a spike.
    """
    everything = np.concatenate(list(groups.values()))
    width = max(float(everything.std()), 1e-6) * len(everything) ** -0.2
    where = np.linspace(everything.min() - 3 * width, everything.max() + 3 * width, 200)
    heights = {
        name: np.exp(-0.5 * ((where[:, None] - values[None]) / width) ** 2).mean(axis=1)
        / (width * math.sqrt(2 * math.pi))
        for name, values in groups.items()
    }
    return {name: (where, height) for name, height in heights.items()}


def size(numbers: Numbers, theme: Theme) -> tuple[float, float]:
    """Return a width and a height; panels that are below each other need the more."""
    panels = len(numbers.rows)
    return (COLUMN, 3.1 * panels + 0.2) if theme.narrow or panels == 1 else (PAGE, 3.3)


def caption(numbers: Numbers) -> str:
    """Return the caption."""
    first = numbers.rows[0]
    lower = ", ".join(f"{row['entropy_lower']:.0%} ({row['objective']})" for row in numbers.rows)
    same, alike = "", f"; {first['alike_low']:.0%} to {first['alike_high']:.0%} if both were alike"
    if all(row["different"] <= numbers.settings["batches"] for row in numbers.rows):
        same, alike = " (one image per batch, repeated: all start grey and follow the same gradient)", ""
    elif first["different"] < first["malicious"]:
        same = f" ({first['different']} different ones: all start grey, and most follow the same gradient)"
    return (
        "Entropy of each image's prediction against the norm of that entropy's gradient with respect to the affine"
        " parameters, through the statistics of the batch; densities of both groups along the edges."
        f" {first['benign']} benign and {first['malicious']} malicious images per panel{same}. Of all pairs, the"
        f" malicious image has the lower entropy in {lower}{alike}."
        f" Layers: {estimator_label(numbers.settings['estimators'][0])}. {describe(numbers)}"
    )


register(
    "entropy-gradient",
    Figure(
        title="entropy and gradient norm of each image",
        paper="3a, 3b",
        measure=measure,
        draw=draw,
        caption=caption,
        size=size,
        parts=lambda settings: 2 * len(compared_objectives(settings)) * settings.batches,
    ),
)
