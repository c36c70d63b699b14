"""Shards: parts of a run that machines work on without knowing of one another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .cell import Cell
from .executors import group_by_poison


@dataclass(frozen=True)
class Shard:
    """One of ``count`` parts of a run, the first of which has number 1.

    The parts depend on the recipes alone: every machine that runs the same recipes divides them alike.

    >>> str(Shard(3, 16))
    '3/16'
    """

    number: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise ValueError(f"a shard is NUMBER/COUNT with NUMBER from 1 to COUNT, such as 3/16, got {self}.")

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def select(self, cells: Iterable[Cell]) -> set[str]:
        """Return the cells of this part, as ``identify`` returns them."""
        distinct = {identify(cell): cell for cell in cells}
        groups = group_by_poison([(cell, None) for cell in distinct.values()])
        return {
            identify(cell)
            for place, group in enumerate(groups)
            # Recipes repeat their estimators every few groups: shifting each round by one spreads them over all shards.
            if (place + place // self.count) % self.count == self.number - 1
            for cell, _ in group
        }


def identify(cell: Cell) -> str:
    """Return a text that is the same for equal cells, and only for them."""
    return repr(cell)
