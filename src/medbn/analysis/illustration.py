"""Figure 1: one malicious sample moves a mean as far as it likes, and a median hardly at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..functional import statistics
from .experiment import Experiment
from .numbers import Numbers
from .registry import Figure, register
from .theme import Theme, estimator_label

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

SAMPLES = 14
"""Benign samples of the illustration."""

VALUES = (0.0, 5.0, 10.0, 20.0)
"""Where the malicious sample is put, in standard deviations of the benign ones."""


def benign_samples(seed: int, count: int = SAMPLES) -> Tensor:
    """Return samples of one channel with mean 0 and standard deviation 1, in order."""
    samples = torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return ((samples - samples.mean()) / samples.std(correction=0)).sort().values


def measure(experiment: Experiment) -> Numbers:
    """Return the centre of each estimator for every place of the malicious sample, and how far that moved it."""
    settings, rows = experiment.settings, []
    samples = benign_samples(settings.seed)
    for value in VALUES:
        batch = torch.cat([samples, torch.tensor([value], dtype=torch.float64)]).unsqueeze(1)
        for name in settings.estimators:
            alone = statistics(batch[:-1], name)[0].item()
            centre = statistics(batch, name)[0].item()
            rows.append({"value": value, "estimator": name, "centre": centre, "shift": centre - alone})
    described = {"samples": SAMPLES, "estimators": list(settings.estimators), "seed": settings.seed}
    return Numbers("illustration", described, rows, {"benign": samples.tolist()})


def draw(numbers: Numbers, canvas: FigureBase, theme: Theme) -> None:
    """Draw one panel per estimator: a line of samples for every place of the malicious one, and the centre."""
    series, values = theme.series(numbers.distinct("estimator")), numbers.distinct("value")
    benign = numbers.details["benign"]
    axes = canvas.subplots(*theme.arrange(len(series)), squeeze=False, sharex=True, sharey=True).ravel()
    for axis, (name, style) in zip(axes, series.items(), strict=True):
        centres = [row["centre"] for row in numbers.select(estimator=name)]
        for height in range(len(values)):
            axis.axhline(height, color=theme.faint, linewidth=0.4)
            axis.plot(benign, [height] * len(benign), "o", color=theme.benign, markersize=2.6)
        (malicious,) = axis.plot(values, range(len(values)), "x", color=theme.malicious, markersize=5, mew=1.4)
        axis.plot(centres, range(len(values)), **{**style, "linestyle": "-", "markersize": 5})
        axis.set_title(style["label"], color=style["color"])
        if not theme.narrow:
            axis.set_xlabel("activation, in standard deviations")
        axis.set_yticks([])
        axis.set_ylim(-0.5, len(values) - 0.5)
        axis.spines["left"].set_visible(False)
    axes[-1].set_xlabel("activation, in standard deviations")
    (dot,) = axes[0].plot([], [], "o", color=theme.benign, markersize=2.6)
    handles = {"benign samples": dot, "malicious sample": malicious}
    theme.add_legend(canvas, list(handles.values()), list(handles), across=2)


def caption(numbers: Numbers) -> str:
    """Return the caption."""
    furthest = numbers.rows[-len(numbers.distinct("estimator")) :]
    moves = ", ".join(f"{row['shift']:.2g} ({estimator_label(row['estimator'])})" for row in furthest)
    return (
        f"The centre of a channel as one malicious sample among {numbers.settings['samples']} benign ones moves away"
        f" (bottom to top); connected marks: the centre with the malicious sample. At {furthest[0]['value']:g} standard"
        f" deviations it has moved by {moves}. Numbers of the estimators themselves; no data, no model."
    )


register(
    "illustration",
    Figure(
        title="how one malicious sample moves a mean and not a median",
        paper="1",
        measure=measure,
        draw=draw,
        caption=caption,
        size=lambda numbers, theme: (theme.width, 3.9 if theme.narrow else 1.9),
        on_data=False,
    ),
)
