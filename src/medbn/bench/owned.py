"""A stream of which some batches are the attacker's: which of its images are hers.

Owned batches are spread evenly: each benign batch is preceded by those that are due, as ``attacks.Interleaved`` sends
them. Batches of the dataset are given out in this order, so that no image is both.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor

from ..attacks import owned_before
from ..data import Dataset, SegmentationDataset


def count_benign(batches: int, share: float) -> int:
    """Return how many benign batches a stream has, with all owned ones before them.

    >>> count_benign(10, 0.5), count_benign(10, 0.3)
    (5, 7)
    """
    benign = int(batches * (1.0 - share)) + 1
    while benign and benign + owned_before(benign, share) > batches:
        benign -= 1
    return benign


class OwnedStream:
    """The batches of a dataset, divided between benign users and the attacker."""

    def __init__(self, dataset: Dataset | SegmentationDataset, size: int, share: float, device: str) -> None:
        self.dataset, self.size, self.share, self.device = dataset, size, share, device

    def benign(self, first: int, limit: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Return benign batches from the number ``first`` on, up to ``limit`` of them."""
        return chain.from_iterable(
            self._read(number + owned_before(number + 1, self.share)) for number in range(first, first + limit)
        )

    def own(self, number: int) -> tuple[Tensor, Tensor]:
        """Return the images of the owned batch of this number, and their labels."""
        benign = int(number * (1.0 - self.share) / self.share)
        while owned_before(benign + 1, self.share) <= number:
            benign += 1
        images, labels = next(self._read(number + benign))
        return images, labels

    def _read(self, place: int) -> Iterator[tuple[Tensor, Tensor]]:
        return self.dataset.batches(self.size, device=torch.device(self.device), first=place, limit=1, drop_last=True)
