"""Objectives against the choice that ``past`` makes with ``changes="detect"``: false alarms, hidden changes, memories.

The adapter compares features of single images with the median that it remembers (``medbn.methods.image_features``). A
feature has changed where few images lie on one side of that median. So malicious images raise an alarm by leaving a
side, and hide a change by filling one. The harm is the share of wrong predictions that follows; ``memory["declared"]``
and ``memory["returned"]`` of the adapter count what was chosen.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...methods import image_features
from .base import Objective, register
from .image import Indiscriminate


class AgainstMemories(Objective):
    """An objective on the features of the malicious images; a subclass defines ``pull``."""

    observes = True

    def check(self, labels: Tensor, benign: Tensor) -> None:
        """Raise a ValueError unless there is one class per image."""
        Indiscriminate().check(labels, benign)

    def value(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """Return the clamped cross-entropy of the benign images, which an ensemble compares equal harm by."""
        return Indiscriminate().value(logits, labels, benign)

    def harm(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """Return the share of benign images that are classified wrongly."""
        return Indiscriminate().harm(logits, labels, benign)

    @abstractmethod
    def pull(self, features: Tensor, benign: Tensor, memory: dict[str, Any]) -> Tensor:
        """Return the number to maximise, given the features ``(B, F)`` of all images and the adapter's memory."""

    def observed_value(
        self, logits: Tensor, labels: Tensor, benign: Tensor, first: Tensor, memory: dict[str, Any]
    ) -> Tensor:
        """Return the number to maximise."""
        if not memory.get("medians"):
            return first.sum() * 0.0  # nothing is remembered, so there is no choice to attack
        return self.pull(image_features(first), benign, memory)


@register("false_alarm")
@dataclass(frozen=True)
class FalseAlarm(AgainstMemories):
    """Move the malicious images to one side of every remembered median, so that the other side is left to the benign.

    Args:
        side: ``"crowded"``, where more benign images are already; ``"above"`` or ``"below"``. Alternating the last two
            over batches pushes the memory one way and the next batch the other way.
    """

    label = "false alarm"

    side: str = "crowded"

    def __post_init__(self) -> None:
        if self.side not in ("crowded", "above", "below"):
            raise ValueError(f"side is 'crowded', 'above' or 'below'; got {self.side!r}.")

    def pull(self, features: Tensor, benign: Tensor, memory: dict[str, Any]) -> Tensor:
        """Return how far the malicious images lie on that side."""
        signed = _signed_distance(features, benign, memory, memory["current"])
        if self.side == "crowded":
            return (_crowded_side(features, benign, memory, memory["current"]) * signed).sum()
        return signed.sum() if self.side == "above" else -signed.sum()


@register("hidden_change")
@dataclass(frozen=True)
class HiddenChange(AgainstMemories):
    """Move the malicious images to the emptier side of every remembered median, so that no change is found."""

    label = "hidden change"

    def pull(self, features: Tensor, benign: Tensor, memory: dict[str, Any]) -> Tensor:
        """Return how far the malicious images fill the emptier sides."""
        return _fit(features, benign, memory, memory["current"])


@register("wrong_memory")
@dataclass(frozen=True)
class WrongMemory(AgainstMemories):
    """Make another memory fit, and the one in use not.

    Args:
        slot: the memory to fit; None for the one that has been in use least recently, of those that are used.
    """

    label = "wrong memory"

    slot: int | None = None

    def pull(self, features: Tensor, benign: Tensor, memory: dict[str, Any]) -> Tensor:
        """Return how much better that memory fits than the one in use."""
        used = {slot: when for slot, when in enumerate(memory["used"]) if when}
        slot = min(used, key=lambda s: used[s]) if self.slot is None else self.slot
        wrong = _fit(features, benign, memory, slot)
        return wrong if slot == memory["current"] else wrong - _fit(features, benign, memory, memory["current"])


def _fit(features: Tensor, benign: Tensor, memory: dict[str, Any], slot: int) -> Tensor:
    side = _crowded_side(features, benign, memory, slot)
    return -(side * _signed_distance(features, benign, memory, slot)).sum()


def _signed_distance(features: Tensor, benign: Tensor, memory: dict[str, Any], slot: int) -> Tensor:
    """Return how far each malicious image is above a remembered median, ``(B, F)``; 0 for benign images.

    In units of the benign images' spread, and bounded: an image need not be further out than beyond the median.
    """
    spread = (features - features[benign].mean(dim=0)).detach()[benign].square().mean(dim=0).sqrt().clamp(min=1e-6)
    distance = ((features - memory["medians"][0][slot].to(features)) / spread).tanh()
    return torch.where(benign.unsqueeze(1), 0.0, distance)


def _crowded_side(features: Tensor, benign: Tensor, memory: dict[str, Any], slot: int) -> Tensor:
    """Return 1 for features of which more benign images lie above the remembered median, −1 for the others."""
    above = features.detach()[benign] > memory["medians"][0][slot].to(features)
    return torch.where(above.float().mean(dim=0) >= 0.5, 1.0, -1.0)
