"""Figure 10: malicious images before and after they were crafted, and the perturbation."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from .captions import describe, epsilon_label
from .experiment import Experiment
from .numbers import Numbers
from .registry import Figure, register
from .theme import Theme, estimator_label

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

IMAGES = 8
"""Malicious images that are shown."""


def measure(experiment: Experiment) -> Numbers:
    """Return how far each shown image was changed, and its pixels before and after, for the first estimator."""
    settings, rows, pixels = experiment.settings, [], []
    name = settings.estimators[0]
    first = experiment.malicious.start
    for epsilon in settings.epsilons:
        cell = experiment.cell(name, epsilon=epsilon)
        clean, poisoned = experiment.batch(cell)[0], experiment.poisoned(cell)
        for index in range(first, min(first + IMAGES, len(clean))):
            change = (poisoned[index] - clean[index]).abs()
            rows.append(
                {
                    "epsilon": epsilon,
                    "estimator": name,
                    "image": index,
                    "largest_change": change.max().item(),
                    "mean_change": change.mean().item(),
                }
            )
            pixels.append({"before": encode(clean[index]), "after": encode(poisoned[index])})
    return Numbers("examples", settings.describe(), rows, {"pixels": pixels})


def encode(image: Tensor) -> dict[str, Any]:
    """Return an image ``(C, H, W)`` in [0, 1] as its shape and its bytes in base 64."""
    values = (image.detach().clamp(0, 1) * 255).round().to(torch.uint8).cpu().contiguous()
    return {"shape": list(values.shape), "bytes": base64.b64encode(values.numpy().tobytes()).decode()}


def decode(image: dict[str, Any]) -> Any:
    """Return an encoded image as an array (H, W, 3) in [0, 1]; a grey one is shown in three equal channels."""
    values = np.frombuffer(base64.b64decode(image["bytes"]), dtype=np.uint8).reshape(image["shape"])
    values = values.transpose(1, 2, 0) / 255.0
    return values if values.shape[2] == 3 else values.mean(2, keepdims=True).repeat(3, axis=2)


def amplify(before: Any, after: Any, epsilon: float) -> Any:
    """Return a perturbation as an image: grey where nothing changed, black and white at −ε and ε."""
    return np.clip(0.5 + (after - before) / (2 * epsilon), 0, 1)


def draw(numbers: Numbers, canvas: FigureBase, theme: Theme) -> None:
    """Draw a column per image, and for each ε the image before, after, and the perturbation."""
    epsilons = numbers.distinct("epsilon")
    pictures = list(zip(numbers.rows, numbers.details["pixels"], strict=True))
    each = len(pictures) // len(epsilons)
    across = shown_images(numbers, theme)
    axes = canvas.subplots(1 + 2 * len(epsilons), across, squeeze=False)
    for place, epsilon in enumerate(epsilons):
        after_row, change_row = axes[1 + 2 * place], axes[2 + 2 * place]
        for column, (row, pixels) in enumerate(pictures[place * each : place * each + across]):
            before, after = decode(pixels["before"]), decode(pixels["after"])
            if place == 0:
                axes[0][column].imshow(before)
            after_row[column].imshow(after)
            change_row[column].imshow(amplify(before, after, row["epsilon"]))
        after_row[0].set_ylabel(f"after\nε = {epsilon_label(epsilon)}")
        change_row[0].set_ylabel("change")
    axes[0][0].set_ylabel("before")
    for axis in axes.flat:
        axis.set_xticks([])
        axis.set_yticks([])
        for spine in axis.spines.values():
            spine.set_visible(False)


def shown_images(numbers: Numbers, theme: Theme) -> int:
    """Return how many images a figure shows beside each other: half of them in a column."""
    count = len(numbers.rows) // len(numbers.distinct("epsilon"))
    return min(count, IMAGES // 2) if theme.narrow else count


def size(numbers: Numbers, theme: Theme) -> tuple[float, float]:
    """Return a width and a height that keep images square."""
    rows = 1 + 2 * len(numbers.distinct("epsilon"))
    return theme.width, rows * (theme.width - 0.4) / max(shown_images(numbers, theme), 4) + 0.1


def caption(numbers: Numbers) -> str:
    """Return the caption."""
    largest = ", ".join(
        f"{max(row['largest_change'] for row in numbers.select(epsilon=e)) * 255:.3g}/255 at ε = {epsilon_label(e)}"
        for e in numbers.distinct("epsilon")
    )
    return (
        f"Malicious images before and after they were crafted against {estimator_label(numbers.rows[0]['estimator'])},"
        f" and the change, from −ε (black) to ε (white). Largest change of a pixel: {largest}."
        f" {describe(numbers, batches=1)}"
    )


register(
    "examples",
    Figure(
        title="malicious images before and after, and the perturbation",
        paper="10",
        measure=measure,
        draw=draw,
        caption=caption,
        size=size,
        parts=lambda settings: len(settings.epsilons),
    ),
)
