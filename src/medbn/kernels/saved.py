"""What passes between forward and backward on the fast paths."""

from __future__ import annotations

from typing import NamedTuple

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


class Saved(NamedTuple):
    """What a forward pass saved, which is all that its backward pass needs beside its inputs."""

    centre: Tensor
    variance: Tensor
    used_centre: Tensor
    """The centre that was used, after mixing with what is held."""
    inverse_std: Tensor
    """The 1/σ that was used."""
    deviation_sum: Tensor
    """The sum of x − centre, float64."""
    selected: Tensor
    """Where the median stands first, ``(C,)``; where median and MAD do, ``(2, C)``; or the two images that each of
    three medians over images comes from, ``(6, C)``."""
    image_means: Tensor | None = None
    """``(B, C)``, each image's own, for medians over images."""
    slopes: Tensor | None = None
    """The slope of the squared MAD, ``(1, C)``, on a GPU the MAD itself; ``(2, C)`` for the two images that it comes
    from."""
    finite: Tensor | None = None
    """``(B,)`` of 0 and 1: the images that take part; None for all of them."""
    finite_count: Tensor | None = None
    """``(1,)``: how many these are."""
    image_variances: Tensor | None = None
    """``(B, C)``, each image's own variance, for medians over images."""


def shapes(kind: str, images: int, channels: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Of ``chosen``, ``means`` and ``slopes``; what there is not is empty."""
    if kind == "image_median":
        return (6, channels), (images, channels), (2, channels)
    return ((channels,), (0,), (0,)) if kind == "median" else ((2, channels), (0,), (1, channels))
