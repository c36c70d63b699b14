"""What a batch costs: measured seconds per model, method, estimator and device, and what they say of other cells.

The table ``costs.json`` ships with the package; ``experiments/costs.py`` makes it from stores of results. Where a
model, method or estimator was not measured, the nearest one that was is scaled by the arithmetic of a forward pass.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import resources

from .cell import Cell
from .time_estimate import forward_operations, image_shape

GPU = "NVIDIA H200"
"""The device for which plans are made."""


@dataclass(frozen=True)
class Cost:
    """Measured seconds of one kind of work on a device."""

    device: str
    model: str
    images: int
    """In a batch."""
    operations: float
    """Floating-point operations of a forward pass over a batch."""
    method: str | None
    """Whose batch is adapted to; None for the steps of an attack, which differ little between methods."""
    estimator: str
    gradient: str | None
    """Of the attack's steps; None for adapting. ``""`` for adapting to a batch that is attacked."""
    seconds: float
    """Of a batch, or of one step of an attack; the mean."""
    count: int
    """How many batches were measured."""


@dataclass(frozen=True)
class Estimate:
    """What a cell takes."""

    seconds: float
    measured: float
    """The part of the seconds that was measured with this model, method and estimator."""


@lru_cache(maxsize=1)
def shipped() -> tuple[Cost, ...]:
    """Return the table that ships with the package."""
    text = resources.files(__package__).joinpath("costs.json").read_text(encoding="utf-8")
    return tuple(Cost(**row) for row in json.loads(text)["costs"])


def to_json(costs: Iterable[Cost]) -> str:
    """Return a table as the text of ``costs.json``."""
    rows = ",\n".join("  " + json.dumps(asdict(cost)) for cost in costs)
    return '{\n "costs": [\n' + rows + "\n ]\n}\n"


def estimate(cell: Cell, batches: int, attacked: int, *, device: str = GPU, table: tuple[Cost, ...] = ()) -> Estimate:
    """Return how long a cell takes on a device.

    Args:
        cell: the cell.
        batches: how many batches it has.
        attacked: how many of them are attacked, and not taken from the poison cache.
        device: as it is called in the table.
        table: measured costs; by default those that ship.
    """
    table = table or shipped()
    setting = cell.setting
    shape = image_shape(setting)
    operations = setting.batch_size * forward_operations(setting.model, *shape)
    gradient = "" if cell.attack else None
    parts = [(_nearest(table, device, cell, operations, cell.method, gradient), float(batches))]
    if cell.attack and attacked > 0:
        steps = attacked * cell.attack.steps * cell.attack.restarts * (1 + 2 * cell.attack.unroll)
        parts.append((_nearest(table, device, cell, operations, None, cell.attack.gradient), float(steps)))
    seconds = measured = 0.0
    for cost, times in parts:
        taken = times * cost.seconds * operations / cost.operations
        seconds += taken
        measured += taken if _is_measured(cost, cell) else 0.0
    return Estimate(seconds, measured)


def _nearest(
    table: tuple[Cost, ...], device: str, cell: Cell, operations: float, method: str | None, gradient: str | None
) -> Cost:
    """Return the measured cost of work that is most like this."""
    found = [c for c in table if c.device == device and (c.method is None) == (method is None)]
    if not found:
        raise ValueError(f"the table of measured costs has nothing for {device!r}.")

    def distance(cost: Cost) -> tuple[bool, bool, bool, bool, float]:
        base, own = cost.estimator.split("@")[0], cell.estimator.split("@")[0]
        return (
            cost.method != method,
            (cost.gradient or None) != (gradient or None) or base != own,
            cost.gradient != gradient,
            cost.estimator != cell.estimator,
            abs(math.log(cost.operations / operations)),
        )

    return min(found, key=distance)


def _is_measured(cost: Cost, cell: Cell) -> bool:
    """Return whether a cost is of this model, method and estimator, and not of similar ones."""
    same = (cost.model, cost.images, cost.estimator) == (cell.setting.model, cell.setting.batch_size, cell.estimator)
    return same and cost.method in (None, cell.method)
