"""What an attack maximises: eq. 5-6 of the MedBN paper, and section 7.3 for dense outputs.

An objective reads the logits of a whole batch, its labels, and a mask of the benign images. Malicious images never
count. Users add their own with ``register``; ``Objective`` says what to define.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from .._registry import Registry

Class = TypeVar("Class", bound="type[Objective]")


class Objective(ABC):
    """What an attack maximises. A subclass is a frozen dataclass of options that defines ``value`` and ``harm``."""

    name: ClassVar[str] = ""
    """The name that it is registered under."""
    label: ClassVar[str] = ""
    """What a report calls the attack; the name if a subclass does not set one."""
    harm_label: ClassVar[str] = "error under attack"
    """What a report calls the average of ``harm``."""
    targeted: ClassVar[bool] = False
    """True where ``harm`` is 0 or 1, so that hits are counted; False where it is a share of wrong predictions."""
    dense: ClassVar[bool] = False
    """True where labels are ``(B, H, W)`` and logits ``(B, classes, H, W)``."""
    ignore: int | None = None
    """The label of pixels that do not count, where outputs are dense."""

    def check(self, labels: Tensor, benign: Tensor) -> None:  # noqa: B027 - an objective may accept every batch
        """Raise a ValueError for a batch on which this objective makes no sense."""

    @abstractmethod
    def value(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """Return the number to maximise, differentiable in the logits."""

    @abstractmethod
    def harm(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """Return the damage done, between 0 and 1: success of the attack, or the share of wrong predictions."""


_registry: Registry[type[Objective]] = Registry("objective")


def available() -> list[str]:
    """Return the names of all objectives.

    >>> available()
    ['indiscriminate', 'indiscriminate_segmentation', 'targeted', 'targeted_pixel']
    """
    return sorted(_registry.available())


def get(name: str) -> type[Objective]:
    """Return the class of that name.

    >>> get("targeted")(index=3)
    Targeted(index=3, target_class=None)
    """
    return _registry.get(name)


def register(name: str, *, replace: bool = False) -> Callable[[Class], Class]:
    """Return a decorator that registers an objective's class under a name.

    Args:
        name: what recipes call it. The bench calls the class without arguments: give all options defaults.
        replace: overwrite a name that exists already.
    """
    return _registry.register_class(name, replace=replace)


def unregister(name: str) -> None:
    """Remove a name."""
    _registry.unregister(name)


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
        _check_rank(self, labels)
        _check_index(self.index, benign)
        _check_target(self.target_class, labels[self.index], f"the image at index {self.index}")

    def target(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the target class."""
        return _target(self.target_class, labels[self.index], logits.shape[1])

    def value(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """Return minus the cross-entropy of the image with the target class."""
        _check_logits(logits, labels)
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
        _check_rank(self, labels)

    def value(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """Return the summed, clamped cross-entropy of the benign images."""
        _check_logits(logits, labels)
        losses = F.cross_entropy(logits.float(), torch.where(benign, labels, 0), reduction="none")
        losses = losses if self.clamp is None else losses.clamp(max=self.clamp)
        return torch.where(benign, losses, 0.0).sum()

    def harm(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """Return the share of benign images that are classified wrongly."""
        return _share(logits.argmax(dim=1) != labels, benign)


@register("targeted_pixel")
@dataclass(frozen=True)
class TargetedPixel(Objective):
    """Section 7.3: make the model predict another class for one pixel; logits ``(B, classes, H, W)``.

    Args:
        index: which image of the batch; it must be benign.
        pixel: row and column.
        target_class: the class to predict; None for the one after the true class.
        ignore: the label of pixels that do not count; 255, as in Cityscapes.
    """

    harm_label = "attack success"
    targeted = dense = True

    index: int = 0
    pixel: tuple[int, int] = (0, 0)
    target_class: int | None = None
    ignore: int = 255

    def check(self, labels: Tensor, benign: Tensor) -> None:
        """Raise a ValueError unless the pixel is in the image, the image benign, and the label another one."""
        _check_rank(self, labels)
        _check_index(self.index, benign)
        height, width = labels.shape[-2:]
        if not (0 <= self.pixel[0] < height and 0 <= self.pixel[1] < width):
            raise ValueError(f"pixel {self.pixel} is outside of labels of {height} × {width}.")
        true = labels[(self.index, *self.pixel)]
        if bool(true == self.ignore):
            raise ValueError(
                f"pixel {self.pixel} of image {self.index} has the label {self.ignore}, which does not count."
            )
        _check_target(self.target_class, true, f"pixel {self.pixel} of image {self.index}")

    def target(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the target class."""
        return _target(self.target_class, labels[(self.index, *self.pixel)], logits.shape[1])

    def value(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """Return minus the cross-entropy of the pixel with the target class."""
        at_pixel = logits[self.index, :, self.pixel[0], self.pixel[1]]
        return -F.cross_entropy(at_pixel.unsqueeze(0).float(), self.target(logits, labels).unsqueeze(0))

    def harm(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """Return 1 if the target class is predicted there, else 0."""
        at_pixel = logits[self.index, :, self.pixel[0], self.pixel[1]]
        return (at_pixel.argmax() == self.target(logits, labels)).float()


@register("indiscriminate_segmentation")
@dataclass(frozen=True)
class IndiscriminateSegmentation(Objective):
    """Section 7.3: raise the cross-entropy of all pixels of the benign images; logits ``(B, classes, H, W)``.

    Args:
        clamp: the most that one pixel can contribute; None for no limit.
        ignore: the label of pixels that do not count; 255, as in Cityscapes.
    """

    dense = True

    clamp: float | None = 5.0
    ignore: int = 255

    def check(self, labels: Tensor, benign: Tensor) -> None:
        """Raise a ValueError unless there is one class per pixel."""
        _check_rank(self, labels)

    def value(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """Return the summed, clamped cross-entropy of the pixels."""
        _check_logits(logits, labels)
        counted = torch.where(benign.view(-1, 1, 1), labels, self.ignore)
        losses = F.cross_entropy(logits.float(), counted, reduction="none", ignore_index=self.ignore)
        losses = losses if self.clamp is None else losses.clamp(max=self.clamp)
        return losses.sum()

    def harm(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """Return the share of pixels that are classified wrongly."""
        counted = benign.view(-1, 1, 1) & (labels != self.ignore)
        return _share(logits.argmax(dim=1) != labels, counted)


def _share(wrong: Tensor, counted: Tensor) -> Tensor:
    """Return the share of what is counted that is wrong, or NaN if nothing is, without host synchronisation."""
    return (wrong & counted).sum() / counted.sum()


def _target(target_class: int | None, true: Tensor, classes: int) -> Tensor:
    if target_class is not None and not 0 <= target_class < classes:
        raise ValueError(f"target_class {target_class} is not one of the model's {classes} classes.")
    return (true + 1) % classes if target_class is None else torch.full_like(true, target_class)


def _check_rank(objective: Objective, labels: Tensor) -> None:
    if labels.dim() != (3 if objective.dense else 1):
        expected, other = (
            ("(B, H, W)", "Targeted or Indiscriminate")
            if objective.dense
            else ("(B,)", "TargetedPixel or IndiscriminateSegmentation")
        )
        raise ValueError(
            f"{type(objective).__name__} takes labels {expected}, got {tuple(labels.shape)}; use {other} for those."
        )


def _check_logits(logits: Tensor, labels: Tensor) -> None:
    if logits.dim() != labels.dim() + 1:
        raise ValueError(f"logits {tuple(logits.shape)} do not fit labels {tuple(labels.shape)}.")


def _check_target(target_class: int | None, true: Tensor, what: str) -> None:
    if target_class is not None and bool(true == target_class):
        raise ValueError(f"{what} is of class {target_class} already; choose another target_class.")


def _check_index(index: int, benign: Tensor) -> None:
    if not -len(benign) <= index < len(benign):
        raise ValueError(f"the target, image {index}, is not in a batch of {len(benign)}.")
    if not bool(benign[index]):
        raise ValueError(f"the target, image {index}, is malicious itself; target a benign image.")
