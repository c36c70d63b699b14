"""sEMA: source-initialised exponential moving average of the statistics (eq. 14-15 of the MedBN paper)."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from .. import policies
from ..policies import Policy
from ._call import Inputs
from ._check_state import Values, check_count
from ._registry import register
from .base import Adapter, Commit


@register("sema")
class SEMA(Adapter):
    """Normalises every batch with a moving average that includes it and starts at the training statistics.

    Args:
        model: the model to adapt.
        momentum: the weight of the new batch; 0.2 in the MedBN paper, which writes α = 0.8 for the rest.
        counted: give the training statistics and all batches so far equal weights, as long as the new batch then weighs
            more than ``momentum``: a half for the first batch, a third for the second. The average follows a shift
            within a few batches and still gives a single later batch little weight; so a small momentum is useful.
        options: those of Adapter.
    """

    label: ClassVar[str] = "sEMA"
    surrogate_from_policies: ClassVar[bool] = True

    def __init__(self, model: nn.Module, *, momentum: float = 0.2, counted: bool = False, **options: Any) -> None:
        super().__init__(model, **options)
        self.policy = policies.ema(momentum)
        self.counted = counted
        if counted:
            self.memory["batches"] = 0

    def policy_for(self, layer: str) -> Policy:
        """Return the moving average, with the weight of the next batch in it."""
        return self._counted_policy(self.memory) if self.counted else self.policy

    def commit_policy(self, images: int, memory: dict[str, Any]) -> Policy | None:
        """Return the moving average with the weight of the batch that follows ``memory["batches"]`` others."""
        return self._counted_policy(memory) if self.counted else None

    def commit(self, commit: Commit, images: int, inputs: Inputs, output: Any) -> None:
        """Commit the batch, and count it."""
        super().commit(commit, images, inputs, output)
        if self.counted:
            self.memory["batches"] += 1

    def _counted_policy(self, memory: dict[str, Any]) -> Policy:
        return policies.ema(max(self.policy.weight, 1.0 / (memory["batches"] + 2)))

    def check_memory(self, memory: dict[str, Any], values: Values) -> None:
        """Require a number of batches."""
        if self.counted:
            check_count("the number of batches", memory["batches"])
