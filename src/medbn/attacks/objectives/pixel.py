"""Objectives for segmentation: logits ``(B, classes, H, W)``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ...confusion import IGNORE
from ._checks import check_index, check_logits, check_rank, check_target, choose_target, wrong_share
from ._pixels import cross_entropy_per_pixel, draw_pixel
from .base import Objective, register


@register("targeted_pixel")
@dataclass(frozen=True)
class TargetedPixel(Objective):
    """Section 7.3: make the model predict another class for one pixel; logits ``(B, classes, H, W)``.

    Args:
        index: which image of the batch; it must be benign.
        pixel: row and column; None draws one among the pixels of the image that count, from ``seed`` and the image's
            labels, so that every attack on the same image has the same target.
        target_class: the class to predict, and a pixel of another class is drawn; None for the class after the true
            one, wrapping.
        ignore: the label of pixels that do not count; 255, as in Cityscapes.
        classes: the classes that are scored, among which the next one is taken; None for all of the model's.
        seed: of the draw.
    """

    harm_label = "attack success"
    targeted = dense = True

    index: int = 0
    pixel: tuple[int, int] | None = None
    target_class: int | None = None
    ignore: int = IGNORE
    classes: tuple[int, ...] | None = None
    seed: int = 0

    def check(self, labels: Tensor, benign: Tensor) -> None:
        """Raise a ValueError unless the pixel is in the image, the image benign, and the label another one."""
        check_rank(self, labels)
        check_index(self.index, benign)
        if self.pixel is None:
            if not bool(self._counts(labels).any()):
                raise ValueError(f"image {self.index} has no pixel that counts, so none can be targeted.")
            return
        height, width = labels.shape[-2:]
        if not (0 <= self.pixel[0] < height and 0 <= self.pixel[1] < width):
            raise ValueError(f"pixel {self.pixel} is outside of labels of {height} × {width}.")
        true = labels[(self.index, *self.pixel)]
        if bool(true == self.ignore):
            raise ValueError(
                f"pixel {self.pixel} of image {self.index} has the label {self.ignore}, which does not count."
            )
        check_target(self.target_class, true, f"pixel {self.pixel} of image {self.index}")

    def mask(self, labels: Tensor) -> Tensor:
        """Return an ``(H, W)`` mask that is true at the targeted pixel, without host synchronisation."""
        height, width = labels.shape[-2:]
        positions = torch.arange(height * width, device=labels.device).view(height, width)
        if self.pixel is not None:
            return positions == self.pixel[0] * width + self.pixel[1]
        return positions == draw_pixel(labels[self.index], self._counts(labels), self.seed)

    def target(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the target class."""
        true = torch.where(self.mask(labels), labels[self.index], 0).sum()
        if self.classes is None or self.target_class is not None:
            return choose_target(self.target_class, true, logits.shape[1])
        # The smallest scored class above the true one, else the smallest of all. Comparisons with numbers instead of
        # a table, which would be copied from the host: a captured step must not.
        target = torch.full_like(true, min(self.classes))
        for scored in sorted(self.classes, reverse=True):
            target = torch.where(true < scored, scored, target)
        return target

    def value(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """Return minus the cross-entropy of the pixel with the target class."""
        return -F.cross_entropy(self._at_pixel(logits, labels).unsqueeze(0), self.target(logits, labels).unsqueeze(0))

    def harm(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """Return 1 if the target class is predicted there, else 0."""
        return (self._at_pixel(logits, labels).argmax() == self.target(logits, labels)).float()

    def _at_pixel(self, logits: Tensor, labels: Tensor) -> Tensor:
        # A sum of one value and zeros: indexing with a tensor waits for the GPU, and its gradient is not deterministic.
        return torch.where(self.mask(labels), logits[self.index].float(), 0.0).sum(dim=(1, 2))

    def _counts(self, labels: Tensor) -> Tensor:
        """Return an ``(H, W)`` mask of the pixels that can be drawn."""
        own = labels[self.index]
        counted = (own != self.ignore) & (own != (-1 if self.target_class is None else self.target_class))
        if self.classes is None:
            return counted
        scored = torch.zeros_like(counted)
        for each in self.classes:
            scored |= own == each
        return counted & scored


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
    ignore: int = IGNORE

    def check(self, labels: Tensor, benign: Tensor) -> None:
        """Raise a ValueError unless there is one class per pixel."""
        check_rank(self, labels)

    def value(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """Return the summed, clamped cross-entropy of the pixels."""
        check_logits(logits, labels)
        losses = cross_entropy_per_pixel(logits.float(), labels)
        losses = losses if self.clamp is None else losses.clamp(max=self.clamp)
        return torch.where(benign.view(-1, 1, 1) & (labels != self.ignore), losses, 0.0).sum()

    def harm(self, logits: Tensor, labels: Tensor, benign: Tensor) -> Tensor:
        """Return the share of pixels that are classified wrongly."""
        counted = benign.view(-1, 1, 1) & (labels != self.ignore)
        return wrong_share(logits.argmax(dim=1) != labels, counted)
