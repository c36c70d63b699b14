"""Figure 3c: the share of malicious images among those that the filters of ETA and SoTTA let pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .. import methods
from ..bench import Cell
from ..data import corruptions
from ..methods import Learner, Predictions
from .captions import describe
from .entropy_gradient import compared_objectives, describe_objectives
from .experiment import Experiment
from .numbers import Numbers
from .registry import Figure, register
from .settings import Settings
from .theme import Theme, estimator_label

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

METHODS = {"eta": True, "sotta": False}
"""The methods whose filters the paper's figure shows, and whether these compare with earlier predictions."""


class Passed(NamedTuple):
    """How many images of a batch a filter lets pass."""

    images: int
    malicious: int
    """How many of them are malicious."""


def count_passed(learners: dict[str, Learner], logits: Tensor, benign: Tensor) -> dict[tuple[str, str], Passed]:
    """Return what the filters of methods let pass of a batch, by the learner's name and the name of the filter.

    The rules are the methods' own (``Learner.filters``). Of a method with several, the first is counted alone, and each
    further one together with those before it.

    Args:
        learners: adapters by name; their memory is what the filters that need one use.
        logits: ``(B, classes)``: the predictions of the batch.
        benign: ``(B,)`` mask of the images that are not malicious.
    """
    predictions = Predictions.of(logits)
    counts = {}
    for name, learner in learners.items():
        passed = torch.ones_like(benign)
        for rule, mask in learner.filters(predictions, learner.memory).items():
            passed = passed & mask
            counts[name, rule] = Passed(int(passed.sum()), int((passed & ~benign).sum()))
    return counts


def measure(experiment: Experiment) -> Numbers:
    """Return, for each corruption, objective and filter, how many images pass, and the share of malicious ones."""
    settings, rows = experiment.settings, []
    learners = {name: _learner(experiment, name) for name in METHODS}
    for corruption in _corruptions(settings):
        for name in filter(METHODS.get, METHODS):
            _serve_clean(experiment, learners[name], _method_cell(experiment, name, corruption))
        for objective in compared_objectives(settings):
            totals: dict[tuple[str, str], Passed] = {}
            cell = _attacked_cell(experiment, objective, corruption)
            for number in experiment.numbers(cell):
                with torch.no_grad():
                    logits = experiment.unadapted(cell).surrogate()(experiment.poisoned(cell, number))
                for key, passed in count_passed(learners, logits, experiment.benign).items():
                    before = totals.get(key, Passed(0, 0))
                    totals[key] = Passed(before.images + passed.images, before.malicious + passed.malicious)
            for (method, rule), passed in totals.items():
                rows.append(
                    {
                        "corruption": corruption,
                        "objective": objective,
                        "method": method,
                        "filter": rule,
                        "passed": passed.images,
                        "malicious": passed.malicious,
                        "share": passed.malicious / passed.images if passed.images else None,
                    }
                )
    described = {**describe_objectives(settings), "corruptions": list(_corruptions(settings))}
    return Numbers("filters", described, rows)


def cells(experiment: Experiment) -> Iterator[Cell]:
    """Yield the cells of the attacked batches, and of the methods that filter them."""
    for corruption in _corruptions(experiment.settings):
        yield from (
            _attacked_cell(experiment, objective, corruption) for objective in compared_objectives(experiment.settings)
        )
        yield from (_method_cell(experiment, method, corruption) for method in METHODS)


def _corruptions(settings: Settings) -> tuple[str, ...]:
    return settings.corruptions or corruptions.NAMES


def _attacked_cell(experiment: Experiment, objective: str, corruption: str) -> Cell:
    settings = experiment.settings
    return experiment.cell(
        settings.estimators[0], objective=objective, corruption=corruption, epsilon=settings.epsilons[0]
    )


def _method_cell(experiment: Experiment, method: str, corruption: str) -> Cell:
    return experiment.cell(experiment.settings.estimators[0], method=method, corruption=corruption)


def _learner(experiment: Experiment, method: str) -> Learner:
    adapter = experiment.adapter(_method_cell(experiment, method, _corruptions(experiment.settings)[0]))
    if not isinstance(adapter, Learner):
        raise TypeError(f"{method} learns nothing, so it has no filters.")
    return adapter


def _serve_clean(experiment: Experiment, learner: Learner, cell: Cell) -> None:
    """Reset a learner and let it serve the next batch after the attacked ones, for filters that compare with the past.

    The first batch is served again where a stream has no more.
    """
    learner.reset()
    whole = len(experiment.load(cell).dataset) // experiment.settings.setting.batch_size
    number = experiment.settings.batches
    learner(experiment.batch(cell, number if number < whole else 0)[0])


def draw(numbers: Numbers, canvas: FigureBase, theme: Theme) -> None:
    """Draw one panel per objective: for each corruption, the share after each filter, and a line at what came in."""
    settings = numbers.settings
    names, filters = numbers.distinct("corruption"), list(dict.fromkeys(map(filter_label, numbers.rows)))
    objectives = numbers.distinct("objective")
    axes = canvas.subplots(len(objectives), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    looks = [
        {"facecolor": theme.malicious, "edgecolor": theme.malicious},
        {"facecolor": theme.ground, "edgecolor": theme.malicious, "hatch": "/////"},
        {"facecolor": theme.ink, "edgecolor": theme.ink},
    ]
    width = 0.8 / len(filters)
    for axis, objective in zip(axes, objectives, strict=True):
        for place, label in enumerate(filters):
            rows = [row for row in numbers.select(objective=objective) if filter_label(row) == label]
            where = [names.index(row["corruption"]) + (place - (len(filters) - 1) / 2) * width for row in rows]
            look = looks[place % len(looks)]
            shares = [100 * (row["share"] or 0.0) for row in rows]
            axis.bar(where, shares, 0.88 * width, linewidth=0.6, label=label, **look)
            for x, row in zip(where, rows, strict=True):
                if not row["malicious"]:  # a bar without height
                    axis.annotate("0" if row["passed"] else "–", (x, 0), ha="center", va="bottom", fontsize=5)
        came = 100 * settings["malicious"] / settings["batch_size"]
        axis.axhline(came, color=theme.ink, linewidth=0.8, linestyle="--", label=f"came in: {came:.3g} %")
        axis.set_ylabel("malicious among\nwhat passes (%)")
        axis.set_title(f"{objective} attack")
        axis.grid(True, axis="y")
    axes[-1].set_xticks(range(len(names)), [name.replace("_", " ") for name in names], rotation=45, ha="right")
    handles, labels = axes[0].get_legend_handles_labels()
    theme.add_legend(canvas, handles, labels, across=len(labels))


def filter_label(row: dict[str, object]) -> str:
    """Return what the figure calls the filter of a row."""
    label = methods.get(str(row["method"])).label
    return f"{label}: {row['filter']}" if row["filter"] != "redundancy" else f"{label}: entropy and redundancy"


def caption(numbers: Numbers) -> str:
    """Return the caption."""
    settings = numbers.settings
    shares = [row["share"] for row in numbers.rows if row["share"] is not None]
    least = f" Smallest share: {min(shares):.0%}." if shares else ""
    if settings["batches"] == 1 and all(row["malicious"] in (0, settings["malicious"]) for row in numbers.rows):
        least += " A filter lets all malicious images of a batch pass, or none."
    return (
        "Share of malicious images among those that a filter lets pass, for each corruption."
        f" Filters judge the predictions of {estimator_label(settings['estimators'][0])}; redundancy compares them with"
        f" the average prediction of one clean batch.{least} {describe(numbers)}"
    )


register(
    "filters",
    Figure(
        title="malicious images among those that filters let pass",
        paper="3c",
        measure=measure,
        draw=draw,
        caption=caption,
        size=lambda numbers, theme: (theme.width, 1.2 + 1.5 * len(numbers.distinct("objective"))),
        cells=cells,
        parts=lambda settings: len(_corruptions(settings)) * len(compared_objectives(settings)) * settings.batches,
        short_steps=8,
    ),
)
