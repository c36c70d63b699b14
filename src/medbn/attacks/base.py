"""What every attack is: a function that replaces the malicious images of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from ..methods import Adapter
from .objectives import Objective

Malicious = slice | Sequence[int] | Tensor
"""Which images of a batch are malicious: a slice, indices or a mask."""


class Attack(Protocol):
    """Anything with an objective that can be called like ``DIA``."""

    @property
    def objective(self) -> Objective:
        """What it maximises."""

    def __call__(self, adapter: Adapter, images: Tensor, labels: Tensor, malicious: Malicious) -> Tensor:
        """Return the batch with its malicious images replaced; change neither the adapter nor the arguments."""
