"""What datasets for classification and for segmentation share: labelled images in a fixed order, read in batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .batching import batch_ranges, read_ahead, to_dtype

if TYPE_CHECKING:
    from typing_extensions import Self


class OrderedImages(ABC):
    """Labelled images in a fixed order. A subclass is a frozen dataclass with a field ``compute_fingerprint``."""

    compute_fingerprint: Callable[[], str]

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of images."""

    @abstractmethod
    def read_range(self, indices: range) -> tuple[Tensor, Tensor]:
        """Return copies of images of bytes and of their labels."""

    @abstractmethod
    def subset(self, indices: Sequence[int] | Tensor) -> Self:
        """Return a dataset of the images with these indices, in the order of the indices."""

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
            dtype: of the images: torch.uint8 for bytes, or a floating dtype for values in [0, 1]. Labels are int64.
            device: where the batches are moved to; None leaves them on the CPU.
            first: the index of the batch to start with.
            limit: the largest number of batches; None for all.
            drop_last: leave out the last batch if it is smaller than ``size``.
        """
        ranges = batch_ranges(len(self), size, dtype=dtype, first=first, limit=limit, drop_last=drop_last)
        return (
            (to_dtype(images.to(device), dtype), labels.to(device).long())  # those of pixels are moved as bytes
            for images, labels in read_ahead(self.read_range, ranges)
        )

    def shuffle(self, seed: int = 0) -> Self:
        """Return a dataset of the same images in a random order, which the seed determines."""
        return self.subset(np.random.default_rng(seed).permutation(len(self)).tolist())
