"""The un-adapted model: training statistics, nothing learned. What every adaptation is compared with."""

from __future__ import annotations

from typing import Any

from .. import policies
from .base import Adapter
from .calls import Inputs


class Source(Adapter):
    """Wraps any model, also one without BatchNorm, and never changes."""

    policy = policies.source()

    def check(self, inputs: Inputs, output: Any) -> None:
        """Nothing is adapted, so any output will do."""
