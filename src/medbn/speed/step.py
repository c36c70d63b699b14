"""Time one step of TENT: predict, minimise the entropy, update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import models
from ..methods import Adapter, adapt
from .measurement import Candidate, Measurement, paths
from .settings import DTYPES, LAYOUTS, Settings
from .timing import Call, compare

CLASSES, PIXELS = 10, 32


def cases(settings: Settings) -> list[dict[str, Any]]:
    """Return TENT on the model, in each layout."""
    common = {"method": "tent", "model": settings.model, "batch": settings.batch, "dtype": settings.dtype}
    return [{**common, "layout": layout} for layout in settings.model_layouts]


def measure(settings: Settings, case: dict[str, Any]) -> list[Measurement]:
    """Time a batch through TENT, with BatchNorm and with each robust estimator."""
    images, _ = random_batch(settings, case)
    return compare_adapters("step", case, lambda adapter: adapter(images), settings)


def random_batch(settings: Settings, case: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return random images in [0, 1] and random classes, which take the same time as photographs."""
    generator = torch.Generator(settings.device).manual_seed(0)
    size = case["batch"]
    images = torch.rand(size, 3, PIXELS, PIXELS, generator=generator, device=settings.device)
    labels = torch.randint(CLASSES, (size,), generator=generator, device=settings.device)
    return images.to(memory_format=LAYOUTS[case["layout"]]), labels


def compare_adapters(
    part: str, case: dict[str, Any], work: Callable[[Adapter], object], settings: Settings
) -> list[Measurement]:
    """Time the same work on an adapter with BatchNorm and on one for each robust estimator and path.

    Each path has an adapter of its own, because adapters cache what they have computed on one path.
    """
    dtype = DTYPES[settings.dtype]
    torch.manual_seed(0)
    source = models.get(case["model"], classes=CLASSES)
    source = source.to(settings.device).to(memory_format=LAYOUTS[case["layout"]])  # type: ignore[call-overload]
    probe = torch.zeros(2, 2, 2, 2, device=settings.device, dtype=dtype)
    device_type = torch.device(settings.device).type

    def prepare(estimator: str) -> Call:
        adapter = adapt(source, case["method"], estimator)

        def call() -> None:
            with torch.autocast(device_type, dtype, enabled=settings.dtype != "float32"):
                work(adapter)

        return call

    candidates = [
        Candidate(name, path, prepare(name))
        for name in settings.robust
        for path in paths(probe, name, settings.reference)
    ]
    return compare(
        part, case, prepare("mean"), candidates, lambda path: settings.rounds_for(part, path), settings.device
    )
