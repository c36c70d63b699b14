"""The moving average of ``past``: every image weighs the same, a call no more than a full batch."""

from __future__ import annotations

from typing import NamedTuple

from .. import policies
from ..policies import Policy

MOMENTUM, BATCH_SIZE, TWO_PASS_BATCHES, MIN_IMAGES = 0.05, 200, 5, 16
"""The defaults of ``past``."""


class PastAverage(NamedTuple):
    """How much batches weigh in a moving average of the statistics of earlier ones; ``Past`` explains it."""

    momentum: float = MOMENTUM
    batch_size: int = BATCH_SIZE
    two_pass_batches: int = TWO_PASS_BATCHES

    def policy(self, images: int, before: int) -> Policy:
        """Return the average with the weight of a batch of that many images after so many others."""
        images = min(images, self.batch_size)
        most = images / (self.batch_size + images)
        equal = images / (self.batch_size + before + images)
        return policies.ema(min(max(self.momentum * (images / self.batch_size), equal), most))
