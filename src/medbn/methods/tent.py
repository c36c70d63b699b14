"""TENT: fully test-time adaptation by entropy minimisation (Wang et al., ICLR 2021)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ._call import Predictions, mean_over
from .base import Learner


class Tent(Learner):
    """Minimises the mean entropy −Σ p·log p of the predictions over all affine parameters, one step per batch.

    Its options are those of Learner, with the MedBN paper's defaults.
    """

    def loss(self, predictions: Predictions, memory: dict[str, Any], learned: dict[str, Tensor]) -> Tensor | None:
        """Mean entropy over the usable rows."""
        return mean_over(predictions.entropy(), predictions.usable)
