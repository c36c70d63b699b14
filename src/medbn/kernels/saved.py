"""What a kernel is asked to compute, and what its forward pass saves for the backward pass."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from torch import Tensor


class Spec(NamedTuple):
    """What a kernel computes: its arguments that are not tensors."""

    kernel: str
    """Which statistics: ``"median"``, ``"mad"``, ``"mad_scaled"`` or ``"image_median"``."""
    batch_weight: float
    """The weight of the batch's statistics; the running statistics have the rest."""
    eps: float
    backward: str = "own"
    """Whose gradient the statistics have: ``"own"``, ``"mean"`` (that of mean and variance) or ``"smooth"``."""
    temperature: float = 0.0
    """The width of ``"smooth"`` gradients, in standard deviations; see ``smooth.py``."""


class Activation(NamedTuple):
    """A ReLU behind the normalisation, which the same kernel computes."""

    residual: Tensor | None
    """What is added before the ReLU; None for nothing."""


def _none() -> None:
    # As a factory, for a plain default would be an attribute of the class, and hide that an object has none of its own.
    return None


@dataclass
class Saved:
    """Tensors that a forward pass saves for backward. Those per channel have shape ``(C,)`` if no other is given."""

    centre: Tensor
    """The batch's centre."""
    variance: Tensor
    """The batch's variance."""
    used_centre: Tensor
    """The centre that ``x`` was normalised with, after mixing with running statistics."""
    inverse_std: Tensor
    """1/√(variance + eps) that ``x`` was normalised with."""
    deviation_sum: Tensor
    """The sum of x − centre, in float64."""
    selected: Tensor
    """Where the statistics were taken from. ``(C,)``: the first element that equals the median. ``(2, C)``: the first
    elements that median and MAD are taken from. ``(6, C)``: two images for each of three medians over images."""
    image_means: Tensor | None = field(default_factory=_none)
    """``(B, C)``: the mean of each image, for medians over images."""
    slopes: Tensor | None = field(default_factory=_none)
    """The derivative of the squared MAD. ``(1, C)``, which on a GPU is the MAD itself; ``(2, C)`` for the two images
    that the MAD is taken from."""
    finite: Tensor | None = field(default_factory=_none)
    """``(B,)`` of 0 and 1: the images that are finite; None if all are."""
    finite_count: Tensor | None = field(default_factory=_none)
    """``(1,)``: the number of finite images."""
    image_variances: Tensor | None = field(default_factory=_none)
    """``(B, C)``: the variance of each image, for medians over images."""

    def replace(self, **changes: Any) -> Saved:
        """Return the same tensors, but for those that are given."""
        return Saved(**{each.name: getattr(self, each.name) for each in fields(Saved)} | changes)


def shapes(kernel: str, images: int, channels: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of ``selected``, ``image_means`` and ``slopes``; ``(0,)`` for what a kernel does not save."""
    if kernel == "image_median":
        return (6, channels), (images, channels), (2, channels)
    return ((channels,), (0,), (0,)) if kernel == "median" else ((2, channels), (0,), (1, channels))
