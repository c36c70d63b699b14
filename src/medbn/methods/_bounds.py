"""Bounds of the values of images: those outside are refused, or isolated."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from .. import kernels
from .._check_types import check_bounds
from .._errors import abbreviate, unknown_name
from ._call import Inputs

OUTSIDE = ("refuse", "isolate")


@dataclass(frozen=True)
class Bounds:
    """The range that images must be in.

    Args:
        low: the smallest value.
        high: the largest one.
        outside: ``"refuse"`` a call that has an image outside, or ``"isolate"`` that image.
    """

    low: float
    high: float
    outside: str

    @classmethod
    def of(cls, bounds: Any, outside: str) -> Bounds | None:
        """Check the options of an adapter; None if it has no bounds."""
        if outside not in OUTSIDE:
            raise unknown_name("outside", outside, OUTSIDE)
        if bounds is None:
            return None
        return cls(*check_bounds(bounds), outside)

    def apply(self, inputs: Inputs) -> Inputs:
        """Return the call with NaN for every image outside, or raise a ValueError that says which there are.

        Layers isolate an image with NaN without waiting for the device; refusing waits for it. NaN is outside.
        """
        floating = {place: t for place, t in inputs.images().items() if t.is_floating_point()}
        if not floating:
            raise TypeError("bounds= is for floating point images, and this call has none; convert them first.")
        place, images = next(iter(floating.items()))
        rows = images.detach().reshape(inputs.size, math.prod(images.shape[1:]))
        inside = (rows.amin(dim=1) >= self.low) & (rows.amax(dim=1) <= self.high)
        if inputs.valid is not None:
            inside = inside | ~inputs.valid.to(inside.device)
        if self.outside == "isolate":
            isolated = torch.where(kernels.view_per_image(inside, images), images, torch.nan)
            return inputs.with_images({place: isolated}, inputs.size)._replace(valid=inputs.valid)
        outside = (~inside).nonzero().flatten().tolist()
        if outside:
            raise ValueError(
                f"{len(outside)} of {inputs.size} images have values outside of bounds=({self.low:g}, {self.high:g}),"
                f" or NaN: {abbreviate([str(i) for i in outside])}. The call was refused, and no state has changed."
            )
        return inputs
