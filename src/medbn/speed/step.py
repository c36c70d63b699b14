"""One whole step of TENT: predict, minimise the entropy, update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import models
from ..methods import adapt
from ..methods.base import Adapter
from .settings import DTYPES, LAYOUTS, Settings
from .timing import Call, Candidate, Row, compare, paths

CLASSES, PIXELS = 10, 32


def situations(settings: Settings) -> list[dict[str, Any]]:
    """The model in each layout."""
    given = {"method": "tent", "model": settings.model, "batch": settings.batch, "dtype": settings.dtype}
    return [{**given, "layout": layout} for layout in settings.model_layouts]


def measure(settings: Settings, where: dict[str, Any]) -> list[Row]:
    """A batch through TENT, with BatchNorm and with each estimator."""
    images, _ = batch(settings, where)
    return against_mean("step", where, lambda victim: victim(images), settings)


def batch(settings: Settings, where: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Images in [0, 1] and their classes; noise costs what pictures cost."""
    generator = torch.Generator(settings.device).manual_seed(0)
    size = where["batch"]
    images = torch.rand(size, 3, PIXELS, PIXELS, generator=generator, device=settings.device)
    labels = torch.randint(CLASSES, (size,), generator=generator, device=settings.device)
    return images.to(memory_format=LAYOUTS[where["layout"]]), labels


def against_mean(part: str, where: dict[str, Any], work: Callable[[Adapter], object], settings: Settings) -> list[Row]:
    """The same work on a victim of each kind. Each path has an adapter of its own, with whatever that caches."""
    dtype = DTYPES[settings.dtype]
    torch.manual_seed(0)
    source = models.get(where["model"], classes=CLASSES)
    source = source.to(settings.device).to(memory_format=LAYOUTS[where["layout"]])  # type: ignore[call-overload]
    probe = torch.zeros(2, 2, 2, 2, device=settings.device, dtype=dtype)
    kind = torch.device(settings.device).type

    def working(estimator: str) -> Call:
        victim = adapt(source, where["method"], estimator)

        def call() -> None:
            with torch.autocast(kind, dtype, enabled=settings.dtype != "float32"):
                work(victim)

        return call

    candidates = [
        Candidate(e, path, working(e)) for e in settings.robust for path in paths(probe, e, settings.reference)
    ]
    return compare(part, where, working("mean"), candidates, lambda path: settings.turns(part, path), settings.device)
