"""The numbers of one batch, as the store keeps them: counts, from which reports compute rates.

Predictions are counted: one per image or, for segmentation, one per pixel that has a label. Segmentation adds confusion
matrices (rows are labels, columns predictions), because the mean IoU of several batches follows from their sum alone.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..attacks import Outcome, Targeted, TargetedPixel
from ..confusion import confusion_matrix

COUNTED = ("wrong", "wrong_without", "wrong_clean")
"""Wrong predictions of benign images under attack, of the same without attack, and of all images without attack."""


def attacked_metrics(outcome: Outcome) -> dict[str, Any]:
    """Return the numbers of an attacked batch.

    ``wrong`` and ``wrong_without`` count benign images, under and without the attack. ``wrong_clean`` counts all images
    without the attack, in which those of the attacker are still clean. ``hit`` and ``already`` say, for a targeted
    attack, whether the target class is predicted under and without it; ``pixel`` is where, in the first image.
    """
    benign, labels = outcome.benign, outcome.labels
    metrics: dict[str, Any] = {"images": len(labels), "benign": int(benign.sum())}
    if outcome.objective.dense:
        everything = torch.ones_like(benign)
        for name, logits, which in (
            ("wrong", outcome.attacked, benign),
            ("wrong_without", outcome.clean, benign),
            ("wrong_clean", outcome.clean, everything),
        ):
            metrics |= _pixel_metrics(name, logits[which], labels[which])
    else:
        attacked, clean = (logits.argmax(dim=1) != labels for logits in (outcome.attacked, outcome.clean))
        metrics["wrong"] = int(attacked[benign].sum())
        metrics["wrong_without"] = int(clean[benign].sum())
        metrics["wrong_clean"] = int(clean.sum())
    metrics["loss"] = outcome.objective.value(outcome.attacked, labels, benign).item()
    if outcome.objective.targeted:
        metrics["hit"] = int(outcome.harm())
        metrics["already"] = int(outcome.harm_without())
    if isinstance(outcome.objective, TargetedPixel):
        row, column = outcome.objective.mask(labels).nonzero()[0].tolist()
        metrics["pixel"] = [row, column]
        metrics["target"] = int(outcome.objective.target(outcome.attacked, labels))
    return metrics


def unattacked_metrics(
    logits: Tensor, labels: Tensor, scored: tuple[int, ...] | None = None, seed: int = 0
) -> dict[str, Any]:
    """Return the numbers of a batch of a stream without attack.

    ``already`` says whether the first image is predicted as what a targeted attack would ask for.

    Args:
        logits: of the batch.
        labels: one per image, or one per pixel for segmentation.
        scored: the classes that the labels of a segmentation dataset may have.
        seed: of the draw of a pixel.
    """
    metrics: dict[str, Any] = {"images": len(labels)}
    benign = torch.ones(len(labels), dtype=torch.bool, device=labels.device)
    objective: Targeted | TargetedPixel = Targeted()
    if labels.dim() == 1:
        metrics["wrong"] = int((logits.argmax(1) != labels).sum())
    else:
        metrics |= _pixel_metrics("wrong", logits, labels)
        objective = TargetedPixel(classes=scored, seed=seed)
        if not objective.mask(labels)[labels[0] != objective.ignore].any():
            return metrics  # the first image has no pixel that could be targeted
    metrics["already"] = int(objective.harm(logits, labels, benign))
    return metrics


def warm_up_metrics(logits: Tensor, labels: Tensor) -> dict[str, Any]:
    """Return the numbers of a batch before the first attack."""
    if labels.dim() == 1:
        return {"images": len(labels), "wrong_clean": int((logits.argmax(1) != labels).sum())}
    return {"images": len(labels), **_pixel_metrics("wrong_clean", logits, labels)}


def _pixel_metrics(name: str, logits: Tensor, labels: Tensor) -> dict[str, Any]:
    """Return how many pixels count, how many are wrong, and the confusion matrix, under the names for ``name``."""
    counts = confusion_matrix(logits.argmax(dim=1), labels, logits.shape[1])
    pixels = int(counts.sum())
    return {
        _pixels_name(name): pixels,
        name: pixels - int(counts.diagonal().sum()),
        confusion_name(name): counts.tolist(),
    }


def confusion_name(which: str) -> str:
    """Return the name of the confusion matrix behind a number of ``COUNTED``, for instance "confusion_without"."""
    return which.replace("wrong", "confusion")


def _pixels_name(which: str) -> str:
    return "pixels_clean" if which == "wrong_clean" else "pixels"


def predictions_counted(metrics: dict[str, Any], which: str) -> int:
    """Return how many predictions a number of ``COUNTED`` is of."""
    if confusion_name(which) in metrics:
        return int(metrics[_pixels_name(which)])
    return int(metrics["images"] if which == "wrong_clean" else metrics.get("benign", metrics["images"]))


def error_rate(metrics: dict[str, Any], which: str = "wrong") -> float:
    """Return the share of wrong predictions in a batch; 0 for a batch without any pixel that counts."""
    counted = predictions_counted(metrics, which)
    return float(metrics[which]) / counted if counted else 0.0


def check_metrics(metrics: dict[str, Any], *, attacked: bool) -> None:
    """Raise a ValueError unless stored numbers of a batch are what the functions above return."""
    for name in ("images", "benign", "wrong") if attacked else ("images",):
        if name not in metrics:
            raise ValueError(f"a batch has no {name!r}")
    images = metrics["images"]
    least = {"images": 1}
    most = {"images": images, "benign": images, "hit": 1, "already": 1}
    for name in ("pixels", "pixels_clean"):
        if name in metrics:
            most[name] = metrics[name]
    for name in COUNTED:
        if confusion_name(name) in metrics:
            _check_confusion(metrics, name)
        elif name in metrics:
            most[name] = images
    for name, value in metrics.items():
        if name in most and not (_is_count(value) and least.get(name, 0) <= value <= most[name]):
            raise ValueError(f"a batch has {name}={value!r}")
        if name in ("attack_s", "adapt_s") and not (isinstance(value, int | float) and math.isfinite(value)):
            raise ValueError(f"a batch has {name}={value!r}")


def _check_confusion(metrics: dict[str, Any], which: str) -> None:
    """Raise a ValueError unless a confusion matrix is square, of counts, and agrees with the other numbers."""
    name, rows = confusion_name(which), metrics[confusion_name(which)]
    square = isinstance(rows, list) and all(isinstance(row, list) and len(row) == len(rows) for row in rows)
    if not square or not all(_is_count(value) and value >= 0 for row in rows for value in row):
        raise ValueError(f"a batch has a {name} that is no confusion matrix")
    pixels, right = sum(map(sum, rows)), sum(row[index] for index, row in enumerate(rows))
    for other, expected in ((_pixels_name(which), pixels), (which, pixels - right)):
        if metrics.get(other) != expected:
            raise ValueError(f"a batch has {other}={metrics.get(other)!r}, and a {name} that says {expected}")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
