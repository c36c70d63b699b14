"""The batch under attack, and the checks of what is passed to an attack."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ._insert import find_positions, insert
from .base import Malicious

Moments = dict[str, tuple[Tensor, Tensor]]
"""Means and variances ``(images, C)`` over space, by the name of a layer."""


class Batch(NamedTuple):
    """The batch under attack. All fields are tensors, so that a captured step can read them anew."""

    images: Tensor
    labels: Tensor
    benign: Tensor
    """``(B,)`` mask of the images that are not malicious."""
    indices: Tensor
    """Where the malicious images are."""
    numbers: Tensor
    """``(B,)``: the number of each image among the malicious ones; 0 for benign images."""
    clean: Tensor
    """The malicious images before the attack, in float32 or wider: half precision may be too coarse for a step."""
    moments: Moments = {}  # noqa: RUF012 - never written to
    """Those of the malicious images' activations before the attack, where a penalty needs them."""

    @classmethod
    def of(cls, images: Tensor, labels: Tensor, malicious: Malicious, *, own: bool = False) -> Batch:
        """Check the arguments of an attack and return them as a batch; ``own`` allows one without a benign image."""
        images, labels, benign = check_batch(images, labels, malicious, own=own)
        indices, numbers = find_positions(benign)
        clean = images[indices].to(torch.promote_types(images.dtype, torch.float32))
        return cls(images, labels, benign, indices, numbers, clean)

    def insert(self, malicious: Tensor) -> Tensor:
        """Return the batch with these malicious images; the gradient goes to them alone."""
        return insert(self.images, malicious, self.benign, self.indices, self.numbers)

    def with_predicted_labels(self, logits: Tensor) -> Batch:
        """Return the batch with these predictions as the labels of the malicious images."""
        return self._replace(labels=torch.where(self.benign, self.labels, logits.argmax(dim=1)))


def check_batch(
    images: Tensor, labels: Tensor, malicious: Malicious, *, own: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the images without gradient, the labels on their device, and the mask of benign images; or raise."""
    if not isinstance(images, Tensor) or not isinstance(labels, Tensor):
        raise TypeError(f"images and labels must be tensors, got {type(images).__name__} and {type(labels).__name__}.")
    if images.dim() < 2 or not images.is_floating_point():
        raise TypeError(f"expected floating point images (B, ...), got {images.dtype} of shape {tuple(images.shape)}.")
    if labels.shape[:1] != images.shape[:1] or labels.is_floating_point():
        raise ValueError(
            f"expected a class for each of {images.shape[0]} images, got {labels.dtype} {tuple(labels.shape)}."
        )
    if 0 in images.shape:
        raise ValueError(f"cannot attack an empty batch: images have shape {tuple(images.shape)}.")
    images = images.detach()
    low, high = images.min().item(), images.max().item()
    if not (low >= 0.0 and high <= 1.0):
        raise ValueError(
            f"images must lie in [0, 1], but their values go from {low:.3g} to {high:.3g}. If they are normalised,"
            " make the normalisation the model's first layer: an attack is bounded by valid images."
        )
    return images, labels.to(images.device).long(), ~_mask(malicious, images, own)


def _mask(malicious: Malicious, images: Tensor, own: bool) -> Tensor:
    """Return the ``(B,)`` mask of malicious images."""
    size = images.shape[0]
    mask = torch.zeros(size, dtype=torch.bool, device=images.device)
    if isinstance(malicious, slice):
        mask[malicious] = True
    else:
        which = torch.as_tensor(malicious).flatten()
        if which.dtype == torch.bool:
            if which.shape != (size,):
                raise ValueError(
                    f"malicious must mark each of {size} images, got a mask of shape {tuple(which.shape)}."
                )
            mask |= which.to(images.device)
        elif which.numel():
            if which.is_floating_point() or which.dtype == torch.uint8:
                raise TypeError(f"malicious takes a slice, integer indices or a boolean mask, not {which.dtype}.")
            if not (-size <= int(which.min()) and int(which.max()) < size):
                raise ValueError(f"malicious has indices outside of a batch of {size}: {which.tolist()}.")
            mask[which.to(images.device)] = True
    count = int(mask.sum())
    if count == 0:
        raise ValueError("malicious selects no image; at least one must be malicious.")
    if count == size and not own:
        raise ValueError(f"malicious selects all {size} images; at least one must be benign.")
    return mask
