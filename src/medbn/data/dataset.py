"""The type of every dataset: labelled images of one size in a fixed order."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .batching import Indices, check_subset, index_tensor
from .ordered import OrderedImages


@dataclass(frozen=True, eq=False)
class Dataset(OrderedImages):
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

    def read_range(self, indices: range) -> tuple[Tensor, Tensor]:
        """Return copies of images of bytes (N, C, H, W) and of their labels."""
        return self.read(indices), self.labels[indices.start : indices.stop].clone()

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


def chain(name: str, parts: Sequence[Dataset]) -> Dataset:
    """Return the images of several datasets with the same classes, one dataset after the other.

    >>> from medbn.data import load
    >>> digits = load("digits")
    >>> len(chain("twice", [digits, digits.subset(range(3))]))
    800
    """
    kinds = {(part.classes, part.shape) for part in parts}
    if len(kinds) != 1:
        raise ValueError(f"datasets in a row have the same classes and shape, and these have {len(kinds)} kinds.")
    starts = np.cumsum([0, *map(len, parts)])

    def read(indices: Indices) -> Tensor:
        positions = index_tensor(indices)
        which = np.searchsorted(starts, positions.numpy(), side="right") - 1
        images = torch.empty((len(positions), *parts[0].shape), dtype=torch.uint8)
        for number in np.unique(which).tolist():
            chosen = torch.from_numpy(which == number)
            images[chosen] = parts[number].read((positions[chosen] - int(starts[number])).tolist())
        return images

    return replace(
        parts[0],
        name=name,
        labels=torch.cat([part.labels for part in parts]),
        read=read,
        compute_fingerprint=lambda: digest(*(part.fingerprint for part in parts)),
        horizontal_flip=all(part.horizontal_flip for part in parts),
    )
