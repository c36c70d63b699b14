"""Ours: the error over a stream with attacks and changes of corruption, for several methods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import methods
from ..attacks import Attack
from ..bench import Cell
from ..methods import Adapter, predict_logits
from .captions import describe_steps
from .experiment import Experiment
from .numbers import Numbers, Row
from .registry import Figure, register
from .settings import Settings
from .theme import Theme, estimator_label

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

CORRUPTIONS = ("gaussian_noise", "fog", "contrast")
"""The corruptions of the stream, one after the other, unless the settings name others."""
OBJECTIVE = "indiscriminate"
BEFORE, AFTER = 2, 1
"""Batches without attack before and after each attacked one."""


def serve_stream(
    adapter: Adapter, stream: Iterable[tuple[Tensor, Tensor, bool]], attack: Attack, malicious: slice
) -> list[int]:
    """Serve a stream, some of whose batches are attacked, and return the wrong predictions of each batch.

    Poison stays in the adapter, as in the scenario "cumulative". The images of the attacker's places are never counted,
    so that batches compare.

    Args:
        adapter: what serves and adapts.
        stream: images, labels, and whether the batch is attacked.
        attack: made for this adapter, in the state that it is in.
        malicious: the attacker's places in each batch.
    """
    counts = []
    for images, labels, attacked in stream:
        # Where nothing adapts, a prediction depends on its own image only, and there is nothing to attack.
        served = attack(adapter, images, labels, malicious) if attacked and adapter.adapts else images
        wrong = predict_logits(adapter, served).argmax(dim=1) != labels.to(images.device)
        wrong[malicious] = False
        counts.append(wrong.sum())
    return [int(count) for count in torch.stack(counts).tolist()]


def choose_methods(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the methods of the figure with their estimators: TeBN with each estimator, and others with one.

    >>> choose_methods(["mean", "median"])
    [('source', 'mean'), ('tebn', 'mean'), ('tebn', 'median'), ('tent', 'mean'), ('past', 'median')]
    """
    return [("source", names[0]), *(("tebn", name) for name in names), ("tent", names[0]), ("past", names[-1])]


def measure(experiment: Experiment) -> Numbers:
    """Return the error of every method on every batch of the stream."""
    settings, rows = experiment.settings, []
    plan = [(name, attacked) for name in _corruptions(settings) for attacked in _pattern(settings.batches)]
    benign = int(experiment.benign.sum())
    for method, estimator in choose_methods(settings.estimators):
        cell = _cell(experiment, method, estimator, plan[0][0])
        adapter, attack = experiment.adapter(cell), experiment.build_attack(cell)
        wrong = serve_stream(adapter, _stream(experiment, plan), attack, experiment.malicious)
        rows += [
            {
                "method": method,
                "estimator": estimator,
                "batch": number,
                "corruption": name,
                "attacked": attacked,
                "wrong": count,
                "benign": benign,
                "error": count / benign,
            }
            for number, ((name, attacked), count) in enumerate(zip(plan, wrong, strict=True))
        ]
    described = {
        "corruptions": list(_corruptions(settings)),
        "objective": OBJECTIVE,
        "epsilons": [settings.epsilons[0]],
    }
    return Numbers("timeline", {**settings.describe(), **described}, rows)


def cells(experiment: Experiment) -> Iterator[Cell]:
    """Yield the cells of all methods on all corruptions."""
    for method, estimator in choose_methods(experiment.settings.estimators):
        yield from (
            _cell(experiment, method, estimator, corruption) for corruption in _corruptions(experiment.settings)
        )


def count_attacks(settings: Settings) -> int:
    """Return how many batches are attacked: for each method that adapts, those of each corruption."""
    adapting = [name for name, _ in choose_methods(settings.estimators) if methods.get(name).adapts]
    return len(adapting) * len(_corruptions(settings)) * settings.batches


def _corruptions(settings: Settings) -> tuple[str, ...]:
    return settings.corruptions or CORRUPTIONS


def _cell(experiment: Experiment, method: str, estimator: str, corruption: str) -> Cell:
    epsilon = experiment.settings.epsilons[0]
    return experiment.cell(estimator, method=method, objective=OBJECTIVE, corruption=corruption, epsilon=epsilon)


def _pattern(attacked: int) -> list[bool]:
    """Return which batches of one corruption are attacked."""
    return [False] * BEFORE * attacked + [True] * attacked + [False] * AFTER * attacked


def _stream(experiment: Experiment, plan: Sequence[tuple[str, bool]]) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """Yield the batches of the stream: each has the next images of the data, which start again at their end."""
    for number, (corruption, attacked) in enumerate(plan):
        cell = experiment.cell(experiment.settings.estimators[0], corruption=corruption)
        whole = len(experiment.load(cell).dataset) // experiment.settings.setting.batch_size
        yield *experiment.batch(cell, number % whole), attacked


def draw(numbers: Numbers, canvas: FigureBase, theme: Theme) -> None:
    """Draw the error of each method over the batches; attacked batches are shaded, changes of corruption are lines."""
    axis = canvas.subplots()
    series = theme.series(numbers.distinct("estimator"))
    lines = {"source": ":", "tebn": "-", "tent": "--", "past": "-."}
    pairs = dict.fromkeys((row["method"], row["estimator"]) for row in numbers.rows)
    for method, estimator in pairs:
        rows = numbers.select(method=method, estimator=estimator)
        style: dict[str, Any] = {**series[estimator], "linestyle": lines.get(method, "-"), "label": line_label(rows[0])}
        if method == "source":  # it has no estimator
            style.update(color=theme.ink, marker="")
        axis.plot([row["batch"] + 1 for row in rows], [100 * row["error"] for row in rows], **style)
    first = numbers.select(method=rows[0]["method"], estimator=rows[0]["estimator"])
    for row in first:
        if row["attacked"]:
            axis.axvspan(row["batch"] + 0.5, row["batch"] + 1.5, color=theme.malicious, alpha=0.15, linewidth=0)
    for row, before in zip(first, [None, *first[:-1]], strict=True):
        if before is None or row["corruption"] != before["corruption"]:
            if before is not None:
                axis.axvline(row["batch"] + 0.5, color=theme.ink, linewidth=0.7)
            name = row["corruption"].replace("_", " ")
            axis.annotate(name, (row["batch"] + 0.6, 1.01), xycoords=("data", "axes fraction"), fontsize=7)
    axis.set_xlabel("batch")
    axis.set_ylabel("error of benign images (%)")
    axis.set_ylim(bottom=0)
    axis.set_xlim(0.5, len(first) + 0.5)
    axis.grid(True, axis="y")
    theme.add_legend(canvas, *axis.get_legend_handles_labels(), across=3)


def line_label(row: Row) -> str:
    """Return what the figure calls a method with its estimator."""
    label = methods.get(row["method"]).label
    return label if row["method"] == "source" else f"{label}, {estimator_label(row['estimator'])}"


def caption(numbers: Numbers) -> str:
    """Return the caption."""
    s = numbers.settings
    names = ", ".join(name.replace("_", " ") for name in s["corruptions"])
    count = len(numbers.distinct("batch"))
    return (
        f"Error of the {s['batch_size'] - s['malicious']} benign images of each batch, over one stream of {count}"
        " batches. Shaded batches are attacked, each method through its own gradients; the poison stays in what adapts."
        f" Predictions after the update. Data: {s['data']}, {names} of severity {s['severity']} in turn,"
        f" {s['malicious']} of {s['batch_size']} images malicious. Model: {s['model']}. Attack: {s['objective']},"
        f" {describe_steps(numbers)}."
    )


register(
    "timeline",
    Figure(
        title="the error over a stream with attacks and changes",
        paper="ours",
        measure=measure,
        draw=draw,
        caption=caption,
        size=lambda numbers, theme: (theme.width, 3.2),
        parts=count_attacks,
        short_steps=10,
        cells=cells,
    ),
)
