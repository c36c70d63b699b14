"""Source: the model without adaptation, which every method is compared with."""

from __future__ import annotations

from typing import ClassVar

from .. import policies
from ..policies import Policy
from ._registry import register
from .base import Adapter


@register("source")
class Source(Adapter):
    """Normalises with the training statistics and learns nothing; wraps any model, also one without BatchNorm."""

    policy = policies.source()
    adapts: ClassVar[bool] = False
    surrogate_from_policies: ClassVar[bool] = True

    def policy_for(self, layer: str) -> Policy:
        """Return ``source``; for a layer without training statistics ``batch``, which torch's layer uses too."""
        return self.policy if self.layers[layer].running_mean is not None else policies.batch()
