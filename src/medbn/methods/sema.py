"""sEMA: source-initialised exponential moving average of the statistics (eq. 14-15 of the MedBN paper)."""

from __future__ import annotations

from typing import Any

from torch import nn

from .. import policies
from .base import Adapter


class SEMA(Adapter):
    """Normalises every batch with a moving average that includes it, and starts at the training statistics.

    Args:
        model: the model to adapt.
        momentum: the weight of the new batch; 0.2 in the MedBN paper, which writes α = 0.8 for the rest.
        options: those of Adapter.
    """

    def __init__(self, model: nn.Module, *, momentum: float = 0.2, **options: Any) -> None:
        super().__init__(model, **options)
        self.policy = policies.ema(momentum)
