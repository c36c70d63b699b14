"""The one type that all data has: named images in a fixed order."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

Indices = Sequence[int] | range


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
    """The class of every image, int64."""
    shape: tuple[int, int, int]
    """Channels, height, width."""
    read: Callable[[Indices], Tensor] = field(repr=False)
    """The images with these numbers, uint8 (N, C, H, W)."""
    identify: Callable[[], str] = field(repr=False)
    mirrors: bool = True
    """Whether a mirrored image keeps its class, as photographs do and digits do not."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.shape[1:]

    @cached_property
    def fingerprint(self) -> str:
        """What the numbers of an experiment depend on: other images, labels or order give another one."""
        # cached_property writes to the instance's dictionary, which a frozen dataclass still has.
        return self.identify()

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
        """Images and labels in order, the caller's to keep; the next batch is read while the caller works on this one.

        ``dtype`` torch.uint8 gives bytes, a floating one values in [0, 1]. ``first`` is the number of the batch to
        start with, ``limit`` the most batches to give, ``drop_last`` leaves an incomplete last one out.
        """
        if size < 1:
            raise ValueError(f"a batch has at least one image, got size={size}.")
        if first < 0 or (limit is not None and limit < 0):
            raise ValueError(f"first and limit must not be negative, got first={first}, limit={limit}.")
        if dtype != torch.uint8 and not dtype.is_floating_point:
            raise ValueError(f"dtype must be torch.uint8 or a floating one, got {dtype}.")
        count = len(self) // size if drop_last else -(-len(self) // size)
        last = count if limit is None else min(count, first + limit)
        numbers = [range(size * k, min(size * (k + 1), len(self))) for k in range(first, last)]
        return self._stream(numbers, dtype, device)

    def _stream(
        self, numbers: Sequence[range], dtype: torch.dtype, device: torch.device | str | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        with ThreadPoolExecutor(1, thread_name_prefix="medbn-data") as reader:
            ahead = reader.submit(self.read, numbers[0]) if numbers else None
            for position, chosen in enumerate(numbers):
                assert ahead is not None
                images = ahead.result()
                ahead = reader.submit(self.read, numbers[position + 1]) if position + 1 < len(numbers) else None
                images = images.to(device)
                labels = self.labels[chosen.start : chosen.stop].clone().to(device)
                yield (images if dtype == torch.uint8 else images.to(dtype) / 255), labels

    def subset(self, numbers: Sequence[int] | Tensor) -> Dataset:
        """Only these images, in this order."""
        chosen = torch.as_tensor(numbers)
        whole = not len(chosen) or not (chosen.is_floating_point() or chosen.dtype == torch.bool)
        if chosen.dim() != 1 or not whole or (len(chosen) and not 0 <= chosen.min() <= chosen.max() < len(self)):
            raise ValueError(f"a subset of {self.name!r} takes a list of numbers from 0 to {len(self) - 1}.")
        chosen = chosen.long()
        read, identify = self.read, self.identify
        return replace(
            self,
            labels=self.labels[chosen],
            read=lambda some: read(chosen[positions(some)].tolist()),
            identify=lambda: digest(identify(), chosen.numpy()),
        )

    def shuffled(self, seed: int = 0) -> Dataset:
        """The same images in an order of chance that the seed fixes."""
        return self.subset(np.random.default_rng(seed).permutation(len(self)).tolist())


def positions(some: Indices) -> Tensor:
    """Numbers of images as a tensor to index with."""
    return torch.as_tensor(list(some), dtype=torch.int64)


def digest(*parts: str | bytes | np.ndarray) -> str:
    """A short hash of texts and arrays."""
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


def of_array(
    name: str, split: str, classes: Sequence[str], images: Tensor, labels: Tensor, mirrors: bool = True
) -> Dataset:
    """A dataset of images that are in memory, uint8 (N, C, H, W)."""
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
        lambda some: images[positions(some)],
        lambda: digest(images.numpy(), labels.numpy()),
        mirrors,
    )
