"""The type of every dataset: labelled images of one size in a fixed order."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .batching import Indices, batch_ranges, check_subset, index_tensor, read_ahead, to_dtype


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled images of one size in a fixed order, read when they are needed.

    >>> from medbn.data import load
    >>> digits = load("digits")
    >>> len(digits), digits.shape, digits.split
    (797, (1, 16, 16), 'test')
    >>> images, labels = next(digits.batches(200))
    >>> images.shape, images.dtype, labels[:5].tolist()
    (torch.Size([200, 1, 16, 16]), torch.float32, [1, 4, 0, 5, 3])
    """

    name: str
    split: str
    classes: tuple[str, ...]
    labels: Tensor
    """The class index of every image, int64."""
    shape: tuple[int, int, int]
    """Channels, height and width of an image."""
    read: Callable[[Indices], Tensor] = field(repr=False)
    """Return the images with these indices, uint8 (N, C, H, W)."""
    compute_fingerprint: Callable[[], str] = field(repr=False)
    """Hash everything that results depend on; ``fingerprint`` calls it once."""
    horizontal_flip: bool = True
    """Whether a horizontally flipped image keeps its class: true of photographs, not of digits."""

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of images, labels and order, which identifies the data of stored results."""
        # cached_property writes to the instance's dictionary, which a frozen dataclass still has.
        return self.compute_fingerprint()

    def batches(
        self,
        size: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        first: int = 0,
        limit: int | None = None,
        drop_last: bool = False,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over batches of images and labels in order.

        A thread reads the next batch while the caller works on this one. Each batch is a copy, free to be modified.

        Args:
            size: images per batch.
            dtype: torch.uint8 for bytes, or a floating dtype for values in [0, 1].
            device: where the batches are moved to; None leaves them on the CPU.
            first: the index of the batch to start with.
            limit: the largest number of batches; None for all.
            drop_last: leave out the last batch if it is smaller than ``size``.
        """
        ranges = batch_ranges(len(self), size, dtype=dtype, first=first, limit=limit, drop_last=drop_last)

        def read(indices: range) -> tuple[Tensor, Tensor]:
            return self.read(indices), self.labels[indices.start : indices.stop].clone()

        return ((to_dtype(images.to(device), dtype), labels.to(device)) for images, labels in read_ahead(read, ranges))

    def subset(self, indices: Sequence[int] | Tensor) -> Dataset:
        """Return a dataset of the images with these indices, in the order of the indices."""
        chosen = check_subset(indices, self.name, len(self))
        read, compute_fingerprint = self.read, self.compute_fingerprint
        return replace(
            self,
            labels=self.labels[chosen],
            read=lambda positions: read(chosen[index_tensor(positions)].tolist()),
            compute_fingerprint=lambda: digest(compute_fingerprint(), chosen.numpy()),
        )

    def shuffle(self, seed: int = 0) -> Dataset:
        """Return a dataset of the same images in a random order, which the seed determines."""
        return self.subset(np.random.default_rng(seed).permutation(len(self)).tolist())


def read_text(file: Path) -> str:
    """Return the content of a text file; another file is an error that names it."""
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{file} is not a text file in UTF-8.") from None


def digest(*parts: str | bytes | np.ndarray) -> str:
    """Return a hash of texts and arrays, 32 hexadecimal digits."""
    total = hashlib.blake2b(digest_size=16)
    for part in parts:
        data: bytes | memoryview
        if isinstance(part, np.ndarray):
            total.update(repr((part.shape, part.dtype.str)).encode())
            data = np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
        else:
            data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little"))
        total.update(data)
    return total.hexdigest()


def from_tensors(
    name: str, split: str, classes: Sequence[str], images: Tensor, labels: Tensor, horizontal_flip: bool = True
) -> Dataset:
    """Return a dataset of images that are in memory.

    Args:
        name: what reports call the dataset.
        split: "train" or "test".
        classes: the name of each class.
        images: uint8 (N, C, H, W).
        labels: N class indices.
        horizontal_flip: see ``Dataset.horizontal_flip``.
    """
    if images.dtype != torch.uint8 or images.dim() != 4 or len(images) != len(labels):
        raise ValueError(
            f"images must be uint8 (N, C, H, W) with N labels, got {images.dtype} of shape {tuple(images.shape)} and"
            f" {len(labels)} labels."
        )
    labels = labels.to(torch.int64)
    channels, height, width = images.shape[1:]
    return Dataset(
        name,
        split,
        tuple(classes),
        labels,
        (channels, height, width),
        lambda indices: images[index_tensor(indices)],
        lambda: digest(images.numpy(), labels.numpy()),
        horizontal_flip,
    )
