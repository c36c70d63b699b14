"""What every attack is: a function that replaces the malicious images of a batch.

An attack may keep something from batch to batch, as ``DIA`` does: it then has ``advance``, ``learn_from``, ``state``
and ``load``. The functions below call these, and of an attack that has none those of its objective.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
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


def advance(attack: Attack) -> None:
    """Let an attack keep what later batches need of the one that it has crafted."""
    getattr(attack, "advance", attack.objective.advance)()


def learn_from(attack: Attack, adapter: Adapter, images: Tensor, answers: Tensor) -> None:
    """Let an attack take note of the logits that were returned for the attacker's images."""
    learn = getattr(attack, "learn_from", None)
    if learn is not None:
        learn(adapter, images, answers)


def state_of(attack: Attack) -> dict[str, Any]:
    """Return what an attack keeps between batches; it loads with ``weights_only=True``."""
    own = getattr(attack, "state", None)
    if own is not None:
        return dict(own())
    kept = attack.objective.state()
    return {"objective": kept} if kept else {}


def load_state(attack: Attack, state: dict[str, Any], device: torch.device) -> None:
    """Let an attack continue from what ``state_of`` returned."""
    own = getattr(attack, "load", None)
    if own is not None:
        own(state, device)
    else:
        attack.objective.load(state.get("objective", {}))
