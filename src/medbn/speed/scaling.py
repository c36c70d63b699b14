"""Time per element, as channels have more values and activations more channels."""

from __future__ import annotations

from typing import Any

from .layer import Problem, against_batch_norm
from .settings import Settings
from .timing import Row

IMAGES = 100


def situations(settings: Settings) -> list[dict[str, Any]]:
    """Contiguous ``(B, C, S)`` with 100 images, within the limit on elements."""
    few = min(settings.channels)
    return [
        {
            "values": values,
            "channels": channels,
            "shape": (IMAGES, channels, values // IMAGES),
            "dtype": settings.dtype,
        }
        for values in settings.values
        for channels in settings.channels
        if values * channels <= settings.elements and (settings.every_size or channels == few or values == 10_000)
    ]


def measure(settings: Settings, where: dict[str, Any]) -> list[Row]:
    """Forward and backward."""
    problem = Problem.of(settings, where["shape"], "nchw", "forward+backward")
    return against_batch_norm("scaling", where, problem, settings.robust, settings)
