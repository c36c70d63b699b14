"""Objectives for classification: logits ``(B, classes)``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ._checks import check_index, check_logits, check_rank, check_target, choose_target, wrong_share
from .base import Objective, register


@register("targeted")
@dataclass(frozen=True)
class Targeted(Objective):
    """Eq. 5: make the model predict another class for the image at ``index``.

    Args:
        index: which image of the batch; it must be benign.
        target_class: the class to predict; None for the one after the true class, (true + 1) mod classes.
    """

    harm_label = "attack success"
    targeted = True

    index: int = 0
    target_class: int | None = None

    def check(self, labels: Tensor, benign: Tensor) -> None:
        """Raise a ValueError unless the image is in the batch, benign, and not of the target class."""
        check_rank(self, labels)
        check_index(self.index, benign)
        check_target(self.target_class, labels[self.index], f"the image at index {self.index}")

    def target(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the target class."""
        return choose_target(self.target_class, labels[self.index], logits.shape[1])

    def value(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """Return minus the cross-entropy of the image with the target class."""
        check_logits(logits, labels)
        return -F.cross_entropy(logits[self.index].unsqueeze(0).float(), self.target(logits, labels).unsqueeze(0))

    def harm(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """Return 1 if the target class is predicted, else 0."""
        return (logits[self.index].argmax() == self.target(logits, labels)).float()


@register("indiscriminate")
@dataclass(frozen=True)
class Indiscriminate(Objective):
    """Eq. 6: raise the cross-entropy of all benign images.

    Args:
        clamp: the most that one image can contribute, as in the authors' code, so that the attack turns to images that
            are still classified correctly; None for the sum as printed.
    """

    clamp: float | None = 5.0

    def check(self, labels: Tensor, benign: Tensor) -> None:
        """Raise a ValueError unless there is one class per image."""
        check_rank(self, labels)

    def value(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """Return the summed, clamped cross-entropy of the benign images."""
        check_logits(logits, labels)
        losses = F.cross_entropy(logits.float(), torch.where(benign, labels, 0), reduction="none")
        losses = losses if self.clamp is None else losses.clamp(max=self.clamp)
        return torch.where(benign, losses, 0.0).sum()

    def harm(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """Return the share of benign images that are classified wrongly."""
        return wrong_share(logits.argmax(dim=1) != labels, benign)
