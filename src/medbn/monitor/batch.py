"""What the monitor sees of one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .. import kernels
from ..layers import RobustBatchNorm
from ..methods import Adapter, Predictions

SPREAD = 1e-6
"""The least spread between images, so that a constant channel does not divide by zero."""


@dataclass(eq=False)
class Moments:
    """Each image's own mean, and for the first layer its variance, in every channel of one layer's input."""

    layer: RobustBatchNorm
    mean: Tensor
    """``(B, C)``, float32 or wider; zero for images with non-finite values."""
    variance: Tensor | None
    """``(B, C)``; None in all layers but the first, and where a channel has one value per image."""
    usable: Tensor
    """``(B,)`` mask of the images that are finite here and not padding."""
    centre: Tensor = field(init=False)
    """The median over images of their means, which less than half of them cannot move far."""

    def __post_init__(self) -> None:
        self.centre = kernels.middle_over_images(self.mean, self.usable)

    @classmethod
    def of(cls, layer: RobustBatchNorm, x: Tensor, valid: Tensor | None, with_variance: bool) -> Moments:
        """Reduce the input of a layer, ``(B, C, *)``, to the moments of its images; one pass over it."""
        dtype, inner = kernels.working_dtype(x), list(range(2, x.dim()))
        variance: Tensor | None = None
        if not inner or x[0, 0].numel() == 1:
            mean = x.flatten(1).to(dtype)
        else:
            mean = x.mean(dim=inner, dtype=dtype)
            if with_variance:  # torch.var_mean takes forty times as long on a CPU
                squares = torch.linalg.vector_norm(x, dim=inner, dtype=dtype).square() / x[0, 0].numel()
                variance = (squares - mean.square()).clamp(min=0)
        usable = mean.isfinite().all(dim=1)
        if variance is not None:
            usable &= variance.isfinite().all(dim=1)
        if valid is not None and len(valid) == len(usable):
            usable &= valid.to(usable.device)
        column = usable.unsqueeze(1)
        variance = None if variance is None else torch.where(column, variance, 0.0)
        return cls(layer, torch.where(column, mean, 0.0), variance, usable)

    def source_scale(self) -> Tensor:
        """Return the standard deviation of each channel on source images; between images where that is not known."""
        if self.layer.running_var is not None:
            return (self.layer.running_var + self.layer.eps).sqrt()
        return robust_spread(self.mean, self.centre, self.usable)


def robust_spread(values: Tensor, centre: Tensor, usable: Tensor) -> Tensor:
    """Return 1.4826 · the median absolute deviation over images, of each column of ``(B, C)``."""
    spread = kernels.middle_over_images((values - centre).abs(), usable)
    return (kernels.MAD_TO_SIGMA * spread).clamp(min=SPREAD)


@dataclass(eq=False)
class Batch:
    """One batch that an adapter has served, as the functions of ``medbn.monitor.signals`` read it."""

    adapter: Adapter
    images: Tensor
    """The first tensor with an entry per image among the arguments of the call."""
    valid: Tensor | None
    """``(B,)`` mask of the images that are not padding; None if there is no padding."""
    predictions: Predictions | None
    """None where the model returns no logits."""
    layers: dict[str, Moments]
    """The watched layers that have run, by name; the first one comes first."""
    bounds: tuple[float, float] | None
    """The range that images should be in."""

    @property
    def size(self) -> int:
        """The number of images, padding included."""
        return len(self.images)

    def share(self, marked: Tensor) -> Tensor:
        """Return the share of images, padding excluded, that a ``(B,)`` mask marks."""
        if self.valid is None:
            return marked.double().mean()
        valid = self.valid.to(marked.device)
        return (marked & valid).sum().double() / valid.sum()


def first_images(args: Sequence[Any]) -> Tensor | None:
    """Return the first tensor with a batch dimension among flattened arguments."""
    return next((leaf for leaf in args if isinstance(leaf, Tensor) and leaf.dim() > 0), None)
