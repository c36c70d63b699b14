"""The type of every segmentation dataset: images of one size, each with a class for every pixel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..batching import Indices, check_subset, index_tensor
from ..dataset import digest
from ..ordered import OrderedImages

IGNORE = 255
"""The label of pixels that do not count."""

Colour = tuple[int, int, int]
"""Red, green and blue, from 0 to 255."""


@dataclass(frozen=True, eq=False)
class SegmentationDataset(OrderedImages):
    """Images of one size in a fixed order, each with a class for every pixel, read when they are needed.

    >>> from medbn.data import load_segmentation
    >>> scenes = load_segmentation("scenes")
    >>> len(scenes), scenes.size, scenes.split, scenes.classes[:4]
    (240, (64, 96), 'test', ('grass', 'water', 'brick', '0'))
    >>> images, labels = next(scenes.batches(3))
    >>> images.shape, images.dtype, labels.shape, labels.dtype
    (torch.Size([3, 3, 64, 96]), torch.float32, torch.Size([3, 64, 96]), torch.int64)
    """

    name: str
    split: str
    classes: tuple[str, ...]
    colours: tuple[Colour, ...]
    """The colour of each class in pictures."""
    size: tuple[int, int]
    """Height and width of an image."""
    length: int = field(repr=False)
    """The number of images."""
    read_images: Callable[[Indices], Tensor] = field(repr=False)
    """Return the images with these indices, uint8 (N, 3, H, W)."""
    read_labels: Callable[[Indices], Tensor] = field(repr=False)
    """Return the labels of the images with these indices, uint8 (N, H, W); ``IGNORE`` where a pixel does not count."""
    compute_fingerprint: Callable[[], str] = field(repr=False)
    """Hash everything that results depend on; ``fingerprint`` calls it once."""
    scored: tuple[int, ...] = ()
    """The classes that labels may have, where the dataset has fewer than its ``classes``; empty: all of them."""
    horizontal_flip: bool = True
    """Whether a horizontally flipped image keeps its classes: true of streets, not of digits."""

    def __post_init__(self) -> None:
        if len(self.classes) != len(self.colours) or not 0 < len(self.classes) <= IGNORE:
            raise ValueError(
                f"{self.name}: expected 1 to {IGNORE} classes with a colour each, got {len(self.classes)} classes and"
                f" {len(self.colours)} colours."
            )
        if not self.scored:
            object.__setattr__(self, "scored", tuple(range(len(self.classes))))

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return one image, uint8 (3, H, W), and its labels, int64 (H, W)."""
        if not -self.length <= index < self.length:
            raise IndexError(f"{self.name} has {self.length} images, no image {index}.")
        images, labels = self.read([index % self.length])
        return images[0], labels[0]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        return (3, *self.size)

    def read(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Return the images with these indices, uint8 (N, 3, H, W), and their labels, int64 (N, H, W)."""
        return self.read_images(indices), self.read_labels(indices).long()

    def read_range(self, indices: range) -> tuple[Tensor, Tensor]:
        """Return copies of images (N, 3, H, W) and of their labels (N, H, W), both of bytes."""
        return self.read_images(indices), self.read_labels(indices)

    def subset(self, indices: Sequence[int] | Tensor) -> SegmentationDataset:
        """Return a dataset of the images with these indices, in the order of the indices."""
        chosen = check_subset(indices, self.name, len(self))
        read_images, read_labels, compute_fingerprint = self.read_images, self.read_labels, self.compute_fingerprint

        def choose(positions: Indices) -> list[int]:
            return [int(index) for index in chosen[index_tensor(positions)]]

        return replace(
            self,
            length=len(chosen),
            read_images=lambda positions: read_images(choose(positions)),
            read_labels=lambda positions: read_labels(choose(positions)),
            compute_fingerprint=lambda: digest(compute_fingerprint(), chosen.numpy()),
        )


def segmentation_from_tensors(
    name: str,
    split: str,
    classes: Sequence[str],
    colours: Sequence[Colour],
    images: Tensor,
    labels: Tensor,
    horizontal_flip: bool = True,
) -> SegmentationDataset:
    """Return a segmentation dataset of images that are in memory.

    Args:
        name: what reports call the dataset.
        split: "train", "val" or "test".
        classes: the name of each class.
        colours: the colour of each class in pictures.
        images: uint8 (N, 3, H, W).
        labels: class indices (N, H, W); ``IGNORE`` where a pixel does not count.
        horizontal_flip: see ``SegmentationDataset.horizontal_flip``.
    """
    if (
        images.dtype != torch.uint8
        or images.dim() != 4
        or images.shape[1] != 3
        or labels.shape != (len(images), *images.shape[2:])
    ):
        raise ValueError(
            f"images must be uint8 (N, 3, H, W) with labels (N, H, W), got {images.dtype} of shape"
            f" {tuple(images.shape)} and labels of shape {tuple(labels.shape)}."
        )
    wrong = labels[(labels != IGNORE) & ((labels < 0) | (labels >= len(classes)))]
    if len(wrong):
        raise ValueError(f"{name} has the label {int(wrong[0])}; expected 0 to {len(classes) - 1}, or {IGNORE}.")
    labels = labels.to(torch.uint8)
    height, width = images.shape[2:]
    return SegmentationDataset(
        name,
        split,
        tuple(classes),
        tuple(colours),
        (height, width),
        len(images),
        lambda indices: images[index_tensor(indices)],
        lambda indices: labels[index_tensor(indices)],
        lambda: digest(images.numpy(), labels.numpy(), "\n".join(classes)),
        horizontal_flip=horizontal_flip,
    )
