"""Snapshots of an adapter at some of its last batches, to return to the last good one."""

from __future__ import annotations

from collections import deque
from typing import Any

from ..methods import Adapter


class Snapshots:
    """The last few snapshots of an adapter.

    Args:
        adapter: the adapter.
        every: batches between two snapshots.
        keep: how many are kept; the memory that they take is bounded by this many states.
    """

    def __init__(self, adapter: Adapter, every: int, keep: int) -> None:
        self.adapter, self.every = adapter, every
        self._kept: deque[tuple[int, dict[str, Any]]] = deque(maxlen=keep)

    def take(self, batch: int) -> None:
        """Take a snapshot after a batch if it is time for one."""
        if batch % self.every == 0:
            self._kept.append((batch, self.adapter.snapshot()))

    def return_to(self, batch: int) -> int:
        """Restore the newest snapshot that is not younger than ``batch``; drop those that are; return its batch.

        Where there is none, the adapter returns to the source model, which is batch 0.
        """
        while self._kept and self._kept[-1][0] > batch:
            self._kept.pop()
        if not self._kept:
            self.adapter.reset()
            return 0
        number, snapshot = self._kept[-1]
        self.adapter.restore(snapshot)
        return number
