"""sEMA: source-initialised exponential moving average of the statistics (eq. 14-15 of the MedBN paper)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn

from .. import hooks, policies
from ..policies import Policy
from .base import Adapter


class SEMA(Adapter):
    """Normalises every batch with a moving average that includes it, and starts at the training statistics.

    Args:
        model: the model to adapt.
        momentum: the weight of the new batch; 0.2 in the MedBN paper, which writes α = 0.8 for the rest.
        counted: weigh the training statistics and all batches so far alike, as long as that gives the new batch more
            than ``momentum``: a half for the first batch, a third for the second. The average then follows a shift
            within a few batches and still lets a single batch do little later on, which makes a small momentum useful.
        options: those of Adapter.
    """

    def __init__(self, model: nn.Module, *, momentum: float = 0.2, counted: bool = False, **options: Any) -> None:
        super().__init__(model, **options)
        self.policy = policies.ema(momentum)
        self.counted = counted
        if counted:
            self.memory["batches"] = 0

    def policy_of(self, layer: str) -> Policy:
        """The moving average, with the weight that the next batch has in it."""
        return self._weighing(self.memory) if self.counted else self.policy

    def settled(self) -> bool:
        """Once a batch weighs what all later ones do."""
        return not self.counted or self._weighing(self.memory).weight == self.policy.weight

    def attacked(self, state: dict[str, Any], images: int) -> AbstractContextManager[None]:
        """With the weight that a batch has in that state."""
        return hooks.use_policy(self.model, self._weighing(state["memory"])) if self.counted else nullcontext()

    def let_in(self, commit: Callable[..., None], images: int) -> None:
        """Count the batch when it is let in."""
        super().let_in(commit, images)
        if self.counted:
            self.memory["batches"] += 1
            self._weigh()

    def _set_rest(self, state: dict[str, Any]) -> None:
        super()._set_rest(state)
        if self.counted:
            self._weigh()

    def _weighing(self, memory: dict[str, Any]) -> Policy:
        return policies.ema(max(self.policy.weight, 1.0 / (memory["batches"] + 2)))

    def _weigh(self) -> None:
        policy = self._weighing(self.memory)
        for layer in self.layers.values():
            layer.policy = policy
