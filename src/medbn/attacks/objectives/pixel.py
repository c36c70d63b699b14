"""Objectives for segmentation: logits ``(B, classes, H, W)``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ._checks import check_index, check_logits, check_rank, check_target, choose_target, wrong_share
from .base import Objective, register


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
        check_rank(self, labels)
        check_index(self.index, benign)
        height, width = labels.shape[-2:]
        if not (0 <= self.pixel[0] < height and 0 <= self.pixel[1] < width):
            raise ValueError(f"pixel {self.pixel} is outside of labels of {height} × {width}.")
        true = labels[(self.index, *self.pixel)]
        if bool(true == self.ignore):
            raise ValueError(
                f"pixel {self.pixel} of image {self.index} has the label {self.ignore}, which does not count."
            )
        check_target(self.target_class, true, f"pixel {self.pixel} of image {self.index}")

    def target(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the target class."""
        return choose_target(self.target_class, labels[(self.index, *self.pixel)], logits.shape[1])

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
        check_rank(self, labels)

    def value(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """Return the summed, clamped cross-entropy of the pixels."""
        check_logits(logits, labels)
        counted = torch.where(benign.view(-1, 1, 1), labels, self.ignore)
        losses = F.cross_entropy(logits.float(), counted, reduction="none", ignore_index=self.ignore)
        losses = losses if self.clamp is None else losses.clamp(max=self.clamp)
        return losses.sum()

    def harm(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """Return the share of pixels that are classified wrongly."""
        counted = benign.view(-1, 1, 1) & (labels != self.ignore)
        return wrong_share(logits.argmax(dim=1) != labels, counted)
