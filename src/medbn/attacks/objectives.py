"""What an attacker wants, as a number to raise: eq. 5-6 of the MedBN paper, and section 7.3 for dense outputs.

An objective sees the logits of a whole batch, its labels, and a mask of the benign images; others never count.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


class Objective(ABC):
    """To be raised; a frozen dataclass of options."""

    def check(self, labels: Tensor, benign: Tensor) -> None:  # noqa: B027 - most batches are fine
        """Refuse a batch on which this objective makes no sense."""

    @abstractmethod
    def value(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """The number to raise, differentiable in the logits."""

    @abstractmethod
    def harm(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """What the defender suffers, between 0 and 1: the attack succeeded, or the share of wrong predictions."""


@dataclass(frozen=True)
class Targeted(Objective):
    """Eq. 5: let the model predict ``label`` for the image at ``index``.

    Args:
        index: a benign image.
        label: the class to predict; None for the one after the true class, (true + 1) mod classes.
    """

    index: int = 0
    label: int | None = None

    def check(self, labels: Tensor, benign: Tensor) -> None:
        """The target must be in the batch, benign, and not of the target class."""
        _check_rank(self, labels, 1)
        _check_target(self.index, benign)
        _check_label(self.label, labels[self.index], f"the image at index {self.index}")

    def target(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The class to predict."""
        return _target(self.label, labels[self.index], logits.shape[1])

    def value(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """Minus the cross-entropy of the target image with the target class."""
        _check_logits(logits, labels)
        return -F.cross_entropy(logits[self.index].unsqueeze(0).float(), self.target(logits, labels).unsqueeze(0))

    def harm(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """1 if the target class is predicted."""
        return (logits[self.index].argmax() == self.target(logits, labels)).float()


@dataclass(frozen=True)
class Indiscriminate(Objective):
    """Eq. 6: raise the cross-entropy of all benign images.

    Args:
        clamp: no image counts for more than this, as in the authors' code, so that the attack turns to images that are
            still classified correctly; None for the sum as printed.
    """

    clamp: float | None = 5.0

    def check(self, labels: Tensor, benign: Tensor) -> None:
        """One class per image."""
        _check_rank(self, labels, 1)

    def value(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """The summed, clamped cross-entropy of the benign images."""
        _check_logits(logits, labels)
        losses = F.cross_entropy(logits.float(), torch.where(benign, labels, 0), reduction="none")
        losses = losses if self.clamp is None else losses.clamp(max=self.clamp)
        return torch.where(benign, losses, 0.0).sum()

    def harm(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """The share of benign images that are classified wrongly."""
        return _share(logits.argmax(dim=1) != labels, benign)


@dataclass(frozen=True)
class TargetedPixel(Objective):
    """Section 7.3: let the model predict ``label`` for one pixel of a benign image; logits ``(B, classes, H, W)``.

    Args:
        index: a benign image.
        pixel: row and column.
        label: the class to predict; None for the one after the true class.
        ignore: the label of pixels that do not count; 255, as in Cityscapes.
    """

    index: int = 0
    pixel: tuple[int, int] = (0, 0)
    label: int | None = None
    ignore: int = 255

    def check(self, labels: Tensor, benign: Tensor) -> None:
        """The pixel must be in the image, and the image benign."""
        _check_rank(self, labels, 3)
        _check_target(self.index, benign)
        height, width = labels.shape[-2:]
        if not (0 <= self.pixel[0] < height and 0 <= self.pixel[1] < width):
            raise ValueError(f"pixel {self.pixel} is outside of labels of {height} × {width}.")
        true = labels[(self.index, *self.pixel)]
        if bool(true == self.ignore):
            raise ValueError(
                f"pixel {self.pixel} of image {self.index} has the label {self.ignore}, which does not count."
            )
        _check_label(self.label, true, f"pixel {self.pixel} of image {self.index}")

    def target(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The class to predict."""
        return _target(self.label, labels[(self.index, *self.pixel)], logits.shape[1])

    def value(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """Minus the cross-entropy of the pixel with the target class."""
        at_pixel = logits[self.index, :, self.pixel[0], self.pixel[1]]
        return -F.cross_entropy(at_pixel.unsqueeze(0).float(), self.target(logits, labels).unsqueeze(0))

    def harm(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """1 if the target class is predicted there."""
        at_pixel = logits[self.index, :, self.pixel[0], self.pixel[1]]
        return (at_pixel.argmax() == self.target(logits, labels)).float()


@dataclass(frozen=True)
class IndiscriminateSegmentation(Objective):
    """Section 7.3: raise the cross-entropy of all pixels of the benign images; logits ``(B, classes, H, W)``.

    Args:
        clamp: no pixel counts for more than this; None for no limit.
        ignore: the label of pixels that do not count; 255, as in Cityscapes.
    """

    clamp: float | None = 5.0
    ignore: int = 255

    def check(self, labels: Tensor, benign: Tensor) -> None:
        """One class per pixel."""
        _check_rank(self, labels, 3)

    def value(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """The summed, clamped cross-entropy of the pixels."""
        _check_logits(logits, labels)
        counted = torch.where(benign.view(-1, 1, 1), labels, self.ignore)
        losses = F.cross_entropy(logits.float(), counted, reduction="none", ignore_index=self.ignore)
        losses = losses if self.clamp is None else losses.clamp(max=self.clamp)
        return losses.sum()

    def harm(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """The share of pixels that are classified wrongly."""
        counts = benign.view(-1, 1, 1) & (labels != self.ignore)
        return _share(logits.argmax(dim=1) != labels, counts)


def _share(found: Tensor, counted: Tensor) -> Tensor:
    """How much of what counts was found; NaN if nothing counts. A GPU need not be waited for."""
    return (found & counted).sum() / counted.sum()


def _target(label: int | None, true: Tensor, classes: int) -> Tensor:
    if label is not None and not 0 <= label < classes:
        raise ValueError(f"label {label} is no class of a model with {classes}.")
    return (true + 1) % classes if label is None else torch.full_like(true, label)


def _check_rank(objective: Objective, labels: Tensor, rank: int) -> None:
    if labels.dim() != rank:
        expected, other = (
            ("(B,)", "TargetedPixel or IndiscriminateSegmentation") if rank == 1 else ("(B, H, W)", "Targeted")
        )
        raise ValueError(
            f"{type(objective).__name__} takes labels {expected}, got {tuple(labels.shape)}; see {other} for those."
        )


def _check_logits(logits: Tensor, labels: Tensor) -> None:
    if logits.dim() != labels.dim() + 1:
        raise ValueError(f"logits {tuple(logits.shape)} do not go with labels {tuple(labels.shape)}.")


def _check_label(label: int | None, true: Tensor, what: str) -> None:
    if label is not None and bool(true == label):
        raise ValueError(f"{what} is of class {label} already; choose another label.")


def _check_target(index: int, benign: Tensor) -> None:
    if not -len(benign) <= index < len(benign):
        raise ValueError(f"the target, image {index}, is not in a batch of {len(benign)}.")
    if not bool(benign[index]):
        raise ValueError(f"the target, image {index}, is malicious itself; an attack is on somebody else's image.")
