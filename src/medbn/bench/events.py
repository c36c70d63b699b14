"""The events that a run reports while it works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .cell import Cell


@dataclass(frozen=True)
class Event:
    """Progress of one cell.

    Args:
        kind: ``"started"``, ``"batch"`` (one more batch is stored), ``"finished"`` (all batches are stored) or
            ``"busy"`` (another process works on this cell).
        key: the key of the cell in the store.
        cell: the cell.
        batch: how many of its batches are stored.
        batches: how many batches it will have.
        metrics: the numbers of the batch, if ``kind`` is ``"batch"``.
    """

    kind: str
    key: str
    cell: Cell
    batch: int = 0
    batches: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)


OnEvent = Callable[[Event], object]
"""A function that is called with every event."""


def ignore(event: Event) -> None:
    """Do nothing with an event."""
