"""mDIA: mitigating distribution invading attacks (Wu et al., ICML 2023)."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

from torch import nn

from .. import policies
from ..policies import Policy
from ._registry import register
from .base import Adapter


@register("mdia")
class MDIA(Adapter):
    """Mixes training and batch statistics, and uses the training statistics alone in the last layers.

    Args:
        model: the model to adapt.
        prior: the weight of the training statistics; 0.6 in the MedBN authors' settings. Their paper does not say.
        terminal: how many of the last layers, in module order, use training statistics alone; 8 in the same settings.
            At most a third of all layers; a warning says so where that limit applies.
        options: those of Adapter.
    """

    label: ClassVar[str] = "mDIA"
    surrogate_from_policies: ClassVar[bool] = True

    def __init__(self, model: nn.Module, *, prior: float = 0.6, terminal: int = 8, **options: Any) -> None:
        super().__init__(model, **options)
        self.policy = policies.interpolate(prior)
        if terminal < 0:
            raise ValueError(f"terminal is a number of layers, at least 0; got {terminal}.")
        count = min(terminal, len(self.layers) // 3)
        if count < terminal:
            warnings.warn(
                f"the model has {len(self.layers)} robust layers, so the last {count} of them, not {terminal}, use"
                " training statistics alone: a third at the most.",
                stacklevel=3,
            )
        self.terminal = set(list(self.layers)[len(self.layers) - count :])

    def policy_for(self, layer: str) -> Policy:
        """Return ``source`` in the last layers, the mixture elsewhere."""
        return policies.source() if layer in self.terminal else self.policy
