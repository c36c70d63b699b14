"""The numbers of one batch, as the store keeps them: counts, from which reports compute rates."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..attacks import Outcome, Targeted


def attacked_metrics(outcome: Outcome) -> dict[str, Any]:
    """Return the numbers of an attacked batch.

    ``wrong`` and ``wrong_without`` count benign images, under and without the attack. ``wrong_clean`` counts all images
    without the attack, in which those of the attacker are still clean. ``hit`` and ``already`` say, for a targeted
    attack, whether the target class is predicted under and without it.
    """
    benign, labels = outcome.benign, outcome.labels
    attacked, clean = (logits.argmax(dim=1) != labels for logits in (outcome.attacked, outcome.clean))
    loss = outcome.objective.value(outcome.attacked, labels, benign).item()
    metrics: dict[str, Any] = {
        "images": len(labels),
        "benign": int(benign.sum()),
        "wrong": int(attacked[benign].sum()),
        "wrong_without": int(clean[benign].sum()),
        "wrong_clean": int(clean.sum()),
        "loss": loss,
    }
    if outcome.objective.targeted:
        metrics["hit"] = int(outcome.harm())
        metrics["already"] = int(outcome.harm_without())
    return metrics


def unattacked_metrics(logits: Tensor, labels: Tensor) -> dict[str, Any]:
    """Return the numbers of a batch of a stream without attack.

    ``already`` says whether the first image is predicted as what a targeted attack would ask for.
    """
    wrong = int((logits.argmax(1) != labels).sum())
    already = int(Targeted().harm(logits, labels, torch.ones_like(labels, dtype=torch.bool)))
    return {"images": len(labels), "wrong": wrong, "already": already}


def warm_up_metrics(logits: Tensor, labels: Tensor) -> dict[str, Any]:
    """Return the numbers of a batch before the first attack."""
    return {"images": len(labels), "wrong_clean": int((logits.argmax(1) != labels).sum())}


def check_metrics(metrics: dict[str, Any], *, attacked: bool) -> None:
    """Raise a ValueError unless stored numbers of a batch are what the functions above return."""
    counts = {"images": 1, "wrong": 0, "wrong_without": 0, "wrong_clean": 0, "benign": 0, "hit": 0, "already": 0}
    times = {"attack_s", "adapt_s"}
    for name in ("images", "benign", "wrong") if attacked else ("images",):
        if name not in metrics:
            raise ValueError(f"a batch has no {name!r}")
    for name, value in metrics.items():
        integer = isinstance(value, int) and not isinstance(value, bool)
        if name in counts and not (integer and counts[name] <= value <= metrics["images"]):
            raise ValueError(f"a batch has {name}={value!r}")
        if name in times and not (isinstance(value, int | float) and math.isfinite(value)):
            raise ValueError(f"a batch has {name}={value!r}")
