"""Objectives on the attacker's own images, for poison that later batches suffer from.

TePA: Cong et al., Test-Time Poisoning Attacks Against Test-Time Adaptation Models, IEEE S&P 2024. RTTDP: Su et al., On
the Adversarial Risk of Test Time Adaptation, ICLR 2025. Below, p is a prediction for an image of hers and y its label:
the true one or, in the label-free variants, what her surrogate predicts for the image before the attack.

========================  =================================================================================
``Entropy``               H(p)
``NotchHighEntropy``      −KL(q‖p), q uniform over all classes but y
``BalancedLowEntropy``    −CE(p, π(y)), π a one-to-one map to wrong classes
========================  =================================================================================

Each is averaged over her images. Benign images are not read, so a batch may be all hers; the harm is theirs alone.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ._checks import check_logits, check_rank, wrong_share
from .base import Objective, register


class OnOwnImages(Objective):
    """An objective that is an average over the attacker's images; a subclass defines ``each``."""

    own = True

    def check(self, labels: Tensor, benign: Tensor) -> None:
        """Raise a ValueError unless there is one class per image."""
        check_rank(self, labels)

    @abstractmethod
    def each(self, logits: Tensor, labels: Tensor, own: Tensor) -> Tensor:
        """Return one number per image, ``(B,)``, given float32 logits, labels and the mask of the attacker's images."""

    def value(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """Return the average over the attacker's images; 0 if none is hers."""
        check_logits(logits, labels)
        own = ~benign
        return torch.where(own, self.each(logits.float(), labels, own), 0.0).sum() / own.sum().clamp(min=1)

    def harm(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """Return the share of benign images that are classified wrongly."""
        return wrong_share(logits.argmax(dim=1) != labels, benign)


@register("entropy")
@dataclass(frozen=True)
class Entropy(OnOwnImages):
    """TePA's: raise the entropy of the predictions, −Σ p log p. It needs no labels."""

    def each(self, logits: Tensor, labels: Tensor, own: Tensor) -> Tensor:
        """Return the entropies."""
        return -(logits.softmax(dim=1) * logits.log_softmax(dim=1)).sum(dim=1)


@register("notch_high_entropy")
@dataclass(frozen=True)
class NotchHighEntropy(OnOwnImages):
    """RTTDP's NHE: −KL(q‖p), where q is uniform over all classes but y and 0 for y.

    Predictions become unsure between all wrong classes. A method that minimises entropy then learns to avoid y.

    Args:
        label_free: take predictions in place of labels.
    """

    label = "NHE"

    label_free: bool = False

    def each(self, logits: Tensor, labels: Tensor, own: Tensor) -> Tensor:
        """Return −KL(q‖p) = log(K − 1) + the mean of log p over the K − 1 other classes."""
        others = logits.shape[1] - 1
        log_p = logits.log_softmax(dim=1)
        wrong = torch.arange(logits.shape[1], device=logits.device) != labels.unsqueeze(1)
        return -torch.where(wrong, -log_p / others, 0.0).sum(dim=1) + math.log(others)


@register("notch_high_entropy_label_free")
@dataclass(frozen=True)
class LabelFreeNotchHighEntropy(NotchHighEntropy):
    """``NotchHighEntropy`` without labels: y is what the surrogate predicts for the clean image."""

    label = "NHE, label-free"

    label_free: bool = True


@register("balanced_low_entropy")
@dataclass(eq=False)
class BalancedLowEntropy(OnOwnImages):
    """RTTDP's BLE: −CE(p, π(y)), where π maps classes one to one to wrong classes.

    Predictions become sure and wrong, and all classes stay in use, so filters of methods that learn let them pass. π is
    chosen greedily from A, of which row c is a running average of the predictions for images of class c, 1/K each at
    first. Each evaluation takes (1 − momentum) · A + momentum · the mean of its predictions, for the classes that the
    batch has; ``advance`` keeps the last of these. See ``wrong_classes`` for the choice.

    It has a state, so use one per stream. Its steps are not captured as CUDA graphs.

    Args:
        momentum: the weight of the present batch, 0.2 in the authors' code.
        label_free: take predictions in place of labels.
    """

    label = "BLE"
    stateful = True

    momentum: float = 0.2
    label_free: bool = False
    average: Tensor | None = field(default=None, init=False, repr=False)
    """A, ``(K, K)``; None before the first batch."""
    _next: Tensor | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0.0 <= self.momentum <= 1.0:
            raise ValueError(f"momentum is a weight from 0 to 1, got {self.momentum!r}.")

    def each(self, logits: Tensor, labels: Tensor, own: Tensor) -> Tensor:
        """Return −CE(p, π(y))."""
        self._next = self._moved(logits.detach().softmax(dim=1), labels, own)
        # Labels of benign images may be anything, and are not read.
        return -F.cross_entropy(logits, wrong_classes(self._next)[torch.where(own, labels, 0)], reduction="none")

    def _moved(self, p: Tensor, labels: Tensor, own: Tensor) -> Tensor:
        """Return the running average, this batch included."""
        count = p.shape[1]
        average = torch.full((count, count), 1 / count, device=p.device) if self.average is None else self.average
        average = average.to(p)
        members = ((torch.arange(count, device=p.device).unsqueeze(1) == labels) & own).to(p)  # (K, B)
        sizes = members.sum(dim=1, keepdim=True)
        means = members @ p / sizes.clamp(min=1)
        return torch.where(sizes > 0, (1 - self.momentum) * average + self.momentum * means, average)

    def advance(self) -> None:
        """Keep the running average of the last evaluation."""
        if self._next is not None:
            self.average, self._next = self._next, None

    def state(self) -> dict[str, Any]:
        """Return the running average."""
        return {} if self.average is None else {"average": self.average}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a running average."""
        self.average, self._next = state.get("average"), None


@register("balanced_low_entropy_label_free")
@dataclass(eq=False)
class LabelFreeBalancedLowEntropy(BalancedLowEntropy):
    """``BalancedLowEntropy`` without labels: y is what the surrogate predicts for the clean image."""

    label = "BLE, label-free"

    label_free: bool = True


def wrong_classes(average: Tensor) -> Tensor:
    """Return π, ``(K,)``: a wrong class for every class, each used once.

    Classes are matched one after the other. Each time, every unmatched class has shares of the wrong classes that are
    still free, in proportion to ``average``; the pair with the largest share is matched. Where only a class itself is
    left for the last one, that one swaps with the class that was matched before it. The authors' code leaves that
    case to chance, and may map two classes to one.

    Args:
        average: ``(K, K)``, the average prediction for each class, positive.
    """
    count = len(average)
    if count < 2:
        raise ValueError("a wrong class needs at least two classes.")
    numbers = torch.arange(count, device=average.device)
    wrong_pairs = ~torch.eye(count, dtype=torch.bool, device=average.device)
    unmatched, free = (torch.ones_like(numbers, dtype=torch.bool) for _ in range(2))
    chosen, before = torch.zeros_like(numbers), numbers[0]
    for _ in range(count - 1):
        left = torch.where(wrong_pairs & unmatched.unsqueeze(1) & free, average.clamp(min=1e-12), 0.0)
        pair = (left / left.sum(dim=1, keepdim=True).clamp(min=1e-12)).argmax()
        before, wrong = pair // count, pair % count
        chosen = torch.where(numbers == before, wrong, chosen)
        unmatched, free = unmatched & (numbers != before), free & (numbers != wrong)
    last, wrong = unmatched.int().argmax(), free.int().argmax()
    swap = last == wrong  # then the class before takes it, and leaves its own to the last one
    taken = torch.where(numbers == before, chosen, 0).sum()
    chosen = torch.where(numbers == last, torch.where(swap, taken, wrong), chosen)
    return torch.where((numbers == before) & swap, last, chosen)
