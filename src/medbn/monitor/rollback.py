"""Snapshots of an adapter at some of its last batches, to return to the last good one."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

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

    def copy(self, batch: int) -> dict[str, Any] | None:
        """Return a snapshot after a batch if it is time for one, to be kept once the batch is known to be good."""
        return self.adapter.snapshot() if batch % self.every == 0 else None

    def keep(self, batch: int, snapshot: dict[str, Any]) -> None:
        """Keep the snapshot from after a good batch."""
        self._kept.append((batch, snapshot))

    def return_to(self, batch: int) -> int:
        """Restore the newest snapshot that is not younger than ``batch``; drop those that are; return its batch.

        Where there is none, the adapter returns to the source model, which is batch 0.
        """
        while self._kept and self._kept[-1][0] > batch:
            self._kept.pop()
        number, snapshot = self._kept[-1] if self._kept else (0, None)
        with torch.inference_mode(False):  # what is restored is learned from later
            if snapshot is None:
                self.adapter.reset()
            else:
                self.adapter.restore(snapshot)
        return number
