"""What the monitor sees of one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..methods import Adapter, Predictions
from .moments import Moments


class PredictionMeans(NamedTuple):
    """Means over the usable predictions of a batch."""

    entropy: Tensor
    """Mean entropy, in nats."""
    confidence: Tensor
    """Mean probability of the predicted class."""
    probabilities: Tensor
    """``(classes,)``: mean probability of each class."""


@dataclass(eq=False)
class Batch:
    """One batch that an adapter serves, as the functions of ``medbn.monitor.signals`` read it.

    Signals that read images alone may see it before its logits are known; these are None until then.
    """

    adapter: Adapter
    images: Tensor
    """The first tensor with an entry per image among the arguments of the call."""
    valid: Tensor | None
    """``(B,)`` mask of the images that are not padding; None if there is no padding."""
    logits: Tensor | None
    """``(B, classes)``, or ``(B, classes, pixels)`` where the output is dense; None where the model returns none."""
    moments: tuple[Moments, ...]
    """Of the watched layers that have run; the first layer is the first one of the first entry. There is one entry, and
    more only where layers see different numbers of images."""
    bounds: tuple[float, float] | None
    """The range that images should be in."""

    @property
    def size(self) -> int:
        """The number of images, padding included."""
        return len(self.images)

    def share(self, marked: Tensor) -> Tensor:
        """Return the share of images, padding excluded, that a ``(B,)`` mask marks."""
        if self.valid is None:
            return marked.mean(dtype=torch.float64)
        valid = self.valid.to(marked.device)
        return (marked & valid).sum().double() / valid.sum()

    @cached_property
    def predictions(self) -> Predictions | None:
        """The predictions as rows; None where the model returns no logits."""
        return None if self.logits is None else Predictions.of(self.logits, self.valid)

    @cached_property
    def _logs(self) -> Tensor | None:
        """``(B, classes, pixels)``: logarithms of the probabilities, in float32 or wider."""
        if self.logits is None:
            return None
        wide = torch.float64 if self.logits.dtype == torch.float64 else torch.float32
        return self.logits.reshape(*self.logits.shape[:2], -1).log_softmax(dim=1, dtype=wide)

    @cached_property
    def predicted(self) -> Tensor | None:
        """``(B,)`` mask of the images with a usable prediction, as ``Predictions.images``; None without logits."""
        if self._logs is None:
            return None
        finite = self._logs.amin(dim=(1, 2)) > -torch.inf  # no logarithm is above 0, and NaN is not above anything
        return finite if self.valid is None else finite & self.valid.to(finite.device)

    @cached_property
    def prediction_means(self) -> PredictionMeans | None:
        """Means over the usable predictions; None without predictions."""
        logs, predicted = self._logs, self.predicted
        if logs is None or predicted is None:
            return None
        probabilities = logs.exp()
        columns = [(probabilities * logs).sum(dim=1, keepdim=True), probabilities.amax(dim=1, keepdim=True)]
        values = torch.cat([*columns, probabilities], dim=1).masked_fill_(~predicted.view(-1, 1, 1), 0.0)
        means = values.sum(dim=(0, 2)) / (predicted.sum().clamp(min=1) * logs.shape[2])
        return PredictionMeans(-means[0], means[1], means[2:])


def first_images(args: Sequence[Any]) -> Tensor | None:
    """Return the first tensor with a batch dimension among flattened arguments."""
    return next((leaf for leaf in args if isinstance(leaf, Tensor) and leaf.dim() > 0), None)
