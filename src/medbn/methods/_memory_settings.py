"""The options of ``past`` that concern changes, and the weights and ranks that follow from them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from ._changes import KINDS, SHARE, lowest_rank, rank_table, round_age


@dataclass(frozen=True)
class Settings:
    """The options of ``past`` that concern changes; see there."""

    malicious: float
    fallback: float | None
    memories: int
    false_alarms: float
    momentum: float
    batch_size: int

    def __post_init__(self) -> None:
        for name, least, most in (("malicious", 0.0, 0.5), ("false_alarms", 0.0, 1.0), ("fallback", 0.0, 1.0)):
            value = getattr(self, name)
            if value is not None and not (least <= value < most or value == most == 1.0):
                raise ValueError(f"{name} is a number from {least:g} to {most:g}; got {value!r}.")
        if not self.false_alarms:
            raise ValueError("false_alarms is a probability greater than 0: no test is without false alarms.")
        if self.memories < 1:
            raise ValueError(f"memories is a number of memories, at least 1; got {self.memories!r}.")

    @property
    def chance(self) -> float:
        """The chance of a false alarm for one feature and one side.

        By Markov's inequality for the features of a kind; a feature has two sides.
        """
        return self.false_alarms * SHARE / (2 * KINDS)

    def least_images(self) -> int:
        """Return the least number of images of a batch in which a change can be found."""
        most = 2**16
        sizes = range(1, most)
        size = bisect_left(sizes, True, key=lambda n: lowest_rank(n, n, self.malicious, self.chance) > 1)
        if size == len(sizes):
            raise ValueError(f"with malicious={self.malicious:g}, a test needs more than {most} images.")
        return sizes[size]

    def weight(self, images: int, earlier: int) -> float:
        """Return the weight of a batch of that many images in an average over that many earlier ones.

        All weigh the same until a batch would weigh less than ``momentum``.
        """
        moving = min(self.momentum * (images / self.batch_size), images / (self.batch_size + images))
        return max(moving, images / (earlier + images))

    def tables(self, images: int, remembered: Sequence[int]) -> list[tuple[float, ...]]:
        """Return the ranks for a batch of that many images, one row for each memory."""
        # An average in which a batch weighs w varies like that of 2 / w − 1 batches.
        most = 2 * self.batch_size / self.momentum if self.momentum else math.inf
        ages = [round_age(int(min(n, most)), images) if n else images for n in remembered]
        return [rank_table(images, age, self.malicious, self.chance) for age in ages]
