"""TENT: fully test-time adaptation by entropy minimisation (Wang et al., ICLR 2021)."""

from __future__ import annotations

from torch import Tensor

from .base import Learner
from .calls import Predictions, mean_over


class Tent(Learner):
    """Minimises the mean entropy of the predictions (eq. 1 there) over all affine parameters, one step per batch."""

    def loss(self, predictions: Predictions) -> Tensor | None:
        """Mean entropy over the usable rows."""
        return mean_over(predictions.entropy(), predictions.usable)
