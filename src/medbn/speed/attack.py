"""Time one attacked batch: the Distribution Invading Attack, on which the bench spends most of its time."""

from __future__ import annotations

from typing import Any

from ..attacks import DIA, Targeted
from .measurement import Measurement
from .settings import Settings
from .step import compare_adapters, random_batch

METHODS = ("tebn", "tent")
MALICIOUS = 0.2
AUTHORS_SECONDS = 5.8
"""Seconds per attacked batch of the paper authors' code on an H200: ResNet-26, 200 images, 100 steps."""


def cases(settings: Settings) -> list[dict[str, Any]]:
    """Return TeBN and TENT, in each layout of the model."""
    common = {"model": settings.model, "batch": settings.attack_batch, "steps": settings.attack_steps}
    return [
        {"method": method, **common, "dtype": settings.dtype, "layout": layout}
        for layout in settings.model_layouts
        for method in METHODS
    ]


def measure(settings: Settings, case: dict[str, Any]) -> list[Measurement]:
    """Time a targeted attack in which a fifth of the batch is malicious."""
    images, labels = random_batch(settings, case)
    attack = DIA(Targeted(index=0), steps=case["steps"])
    malicious = slice(len(images) - max(1, int(MALICIOUS * len(images))), len(images))
    return compare_adapters("attack", case, lambda adapter: attack(adapter, images, labels, malicious), settings)
