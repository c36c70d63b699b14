"""Ours: the target's margin along the attack's direction, under exact and smooth gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..attacks import Targeted
from ..bench import Cell
from ..methods import Adapter
from .captions import describe
from .experiment import Experiment
from .numbers import Numbers
from .registry import Figure, register
from .theme import Theme, estimator_label

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

GRADIENTS = ("exact", "smooth")
POINTS = 21
"""Points of each line, from the attack's first to its last images."""


def margin(logits: Tensor, index: int, target: int) -> Tensor:
    """Return the logit of the target class minus the largest other one: positive where the attack has succeeded.

    >>> margin(torch.tensor([[1.0, 4.0, 2.5]]), index=0, target=2)
    tensor(-1.5000)
    """
    scores = logits[index]
    others = torch.arange(len(scores), device=scores.device) != target
    return scores[target] - scores[others].max()


@torch.no_grad()
def margins_along(
    adapter: Adapter, batch: Tensor, direction: Tensor, distances: Sequence[float], index: int, target: int
) -> list[float]:
    """Return the target's margin at points of a line through batches; change nothing.

    Args:
        adapter: what predicts, in the state that is measured.
        batch: where the line starts.
        direction: what to add to the batch; zero for benign images.
        distances: multiples of the direction; pixels stay in [0, 1].
        index: the target's position in the batch.
        target: the class that the attacker wants.
    """
    surrogate = adapter.surrogate()
    points = ((batch + distance * direction).clamp(0, 1) for distance in distances)
    return torch.stack([margin(surrogate(point), index, target) for point in points]).tolist()


def measure(experiment: Experiment) -> Numbers:
    """Return the target's margin on the way from the attack's first to its last images, for each gradient."""
    settings, rows = experiment.settings, []
    distances = [place / (POINTS - 1) for place in range(POINTS)]
    for estimator, gradient in _lines(settings.estimators):
        cell = experiment.cell(estimator, epsilon=settings.epsilons[0], gradient=gradient)
        for number in experiment.numbers(cell):
            start, index, target = _start(experiment, cell, number)
            direction = experiment.poisoned(cell, number) - start
            margins = margins_along(experiment.unadapted(cell), start, direction, distances, index, target)
            rows += [
                {"estimator": estimator, "gradient": gradient, "batch": number, "distance": distance, "margin": value}
                for distance, value in zip(distances, margins, strict=True)
            ]
    described = {**settings.describe(), "gradient": " and ".join(GRADIENTS), "epsilons": [settings.epsilons[0]]}
    return Numbers("landscape", described, rows)


def _lines(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield estimators and gradients. A mean's smooth gradient is its exact one."""
    for name in names:
        for gradient in GRADIENTS if name != "mean" else GRADIENTS[:1]:
            yield name, gradient


def _start(experiment: Experiment, cell: Cell, number: int) -> tuple[Tensor, int, int]:
    """Return the batch from which the attack starts, the target's position, and the class that is wanted."""
    assert cell.attack is not None
    attack = cell.attack.build(cell.seed)
    images, labels = experiment.batch(cell, number)
    generator = torch.Generator().manual_seed(attack.seed)
    start = images.clone()
    start[experiment.malicious] = attack.initialise(images[experiment.malicious], attack.start, generator)
    assert isinstance(attack.objective, Targeted)
    classes = torch.zeros(len(labels), len(experiment.load(cell).dataset.classes))
    return start, attack.objective.index, int(attack.objective.target(classes, labels))


def draw(numbers: Numbers, canvas: FigureBase, theme: Theme) -> None:
    """Draw one panel per estimator, with one line per gradient and batch."""
    names = numbers.distinct("estimator")
    series = theme.series(names)
    axes = canvas.subplots(*theme.arrange(len(names)), sharex=True, sharey=True, squeeze=False).ravel()
    for axis, name in zip(axes, names, strict=True):
        for gradient in GRADIENTS:
            for batch in numbers.distinct("batch"):
                rows = numbers.select(estimator=name, gradient=gradient, batch=batch)
                if rows:
                    style = (
                        {"linestyle": "-"} if gradient == "exact" else {"linestyle": "--", "markerfacecolor": "none"}
                    )
                    where, values = [100 * row["distance"] for row in rows], [row["margin"] for row in rows]
                    axis.plot(where, values, markevery=4, **{**series[name], **style, "label": None})
        axis.axhline(0, color=theme.ink, linewidth=0.7, linestyle=":")
        axis.set_title(estimator_label(name))
        axis.grid(True)
        if not theme.narrow or name == names[-1]:
            axis.set_xlabel("way of the attack (%)")
        if theme.narrow or name == names[0]:
            axis.set_ylabel("margin of the target")
    handles = [
        axes[0].plot([], [], color=theme.ink, linestyle=line, label=label)[0]
        for label, line in (("exact gradient", "-"), ("smooth gradient", "--"), ("hit above this line", ":"))
    ]
    theme.add_legend(canvas, handles, [handle.get_label() for handle in handles], across=3)


def caption(numbers: Numbers) -> str:
    """Return the caption."""
    return (
        "Logit of the target class minus the largest other one, on the straight way from the first to the last images"
        " of an attack that follows the exact gradient, and of one that follows the smooth gradient. The values are the"
        " model's own. Where the smooth gradient leads further up, the exact one hides the way."
        f" {describe(numbers)}"
    )


register(
    "landscape",
    Figure(
        title="the target's margin along the attack's way",
        paper="ours",
        measure=measure,
        draw=draw,
        caption=caption,
        size=lambda numbers, theme: (theme.width, 5.2 if theme.narrow else 2.6),
        parts=lambda settings: len(list(_lines(settings.estimators))) * settings.batches,
    ),
)
