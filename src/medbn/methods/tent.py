"""TENT: fully test-time adaptation by entropy minimisation (Wang et al., ICLR 2021)."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from ._call import Predictions
from ._entropy import EntropyLearner
from ._registry import register


@register("tent")
class Tent(EntropyLearner):
    """Minimises the mean entropy −Σ p·log p of the predictions over all affine parameters, one step per batch.

    Its options are those of EntropyLearner, with the MedBN paper's defaults; ``loss="come"`` minimises COME's entropy.
    """

    label: ClassVar[str] = "TENT"
    surrogate_from_policies: ClassVar[bool] = True
    replays: ClassVar[bool] = True

    def loss(self, predictions: Predictions, memory: dict[str, Any], learned: dict[str, Tensor]) -> Tensor | None:
        """Return the mean entropy of the usable rows."""
        return self.mean_of(self.entropy_of(predictions), predictions.usable)
