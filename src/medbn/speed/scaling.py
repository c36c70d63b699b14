"""Time per element of a layer, with growing numbers of values per channel and of channels."""

from __future__ import annotations

from typing import Any

from .layer import LayerProblem, compare_with_batch_norm
from .measurement import Measurement
from .settings import Settings

IMAGES = 100


def cases(settings: Settings) -> list[dict[str, Any]]:
    """Return contiguous shapes ``(B, C, S)`` with 100 images, within the limit on elements."""
    fewest = min(settings.channels)
    return [
        {
            "values": values,
            "channels": channels,
            "shape": (IMAGES, channels, values // IMAGES),
            "dtype": settings.dtype,
        }
        for values in settings.values
        for channels in settings.channels
        if values * channels <= settings.elements and (settings.all_sizes or channels == fewest or values == 10_000)
    ]


def measure(settings: Settings, case: dict[str, Any]) -> list[Measurement]:
    """Time each robust estimator, forward and backward."""
    problem = LayerProblem.random(settings, case["shape"], "nchw", "forward+backward")
    return compare_with_batch_norm("scaling", case, problem, settings.robust, settings)
