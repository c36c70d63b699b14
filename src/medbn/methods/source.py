"""The un-adapted model: training statistics, nothing learned. What every adaptation is compared with."""

from __future__ import annotations

from typing import Any

from .. import policies
from ..policies import Policy
from ._call import Inputs
from .base import Adapter


class Source(Adapter):
    """Wraps any model, also one without BatchNorm, and never changes."""

    policy = policies.source()

    def policy_of(self, layer: str) -> Policy:
        """A layer without training statistics does what torch's does: it uses the batch's."""
        return self.policy if self.layers[layer].running_mean is not None else policies.batch()

    def check(self, inputs: Inputs, output: Any) -> int:
        """Nothing is adapted, so any output will do."""
        return inputs.size
