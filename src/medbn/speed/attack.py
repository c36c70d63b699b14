"""One attacked batch: the Distribution Invading Attack, which is what the test bench spends its time on."""

from __future__ import annotations

from typing import Any

from ..attacks import DIA, Targeted
from .settings import Settings
from .step import against_mean, batch
from .timing import Row

METHODS = ("tebn", "tent")
MALICIOUS = 0.2
AUTHORS = 5.8
"""Seconds per attacked batch of the paper authors' code on an H200: ResNet-26, 200 images, 100 steps."""


def situations(settings: Settings) -> list[dict[str, Any]]:
    """TeBN and TENT, in each layout of the model."""
    given = {"model": settings.model, "batch": settings.attack_batch, "steps": settings.attack_steps}
    return [
        {"method": method, **given, "dtype": settings.dtype, "layout": layout}
        for layout in settings.model_layouts
        for method in METHODS
    ]


def measure(settings: Settings, where: dict[str, Any]) -> list[Row]:
    """A targeted attack by a fifth of the batch."""
    images, labels = batch(settings, where)
    attack = DIA(Targeted(index=0), steps=where["steps"])
    malicious = slice(len(images) - max(1, int(MALICIOUS * len(images))), len(images))
    return against_mean("attack", where, lambda victim: attack(victim, images, labels, malicious), settings)
