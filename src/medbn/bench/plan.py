"""Plan recipes for a number of GPUs, from measured costs."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from dataclasses import dataclass

from . import costs
from .executors import group_by_poison
from .recipe import Recipe
from .time_estimate import count_attacked, count_batches, first_surrogate


@dataclass(frozen=True)
class Plan:
    """What a recipe takes on some GPUs."""

    streams: int
    tasks: int
    """Groups of streams that share a poisoned batch; each runs on one GPU."""
    gpu_seconds: float
    """Of all tasks together."""
    seconds: float
    """Until the last task has ended, the longest ones first."""
    longest: float
    """Seconds of the longest task: more GPUs make no run shorter than this."""
    measured: float
    """The part of the GPU time that was measured with the same model, method and estimator."""


def plan(recipe: Recipe, gpus: int, *, device: str = costs.GPU, table: tuple[costs.Cost, ...] = ()) -> Plan:
    """Return what a recipe takes on a number of GPUs with one task each at a time.

    Starting a task, and reading its data and weights, is not measured and not a part of it.

    Args:
        recipe: what would run.
        gpus: how many GPUs.
        device: which GPUs, as the table calls them.
        table: measured costs; by default those that ship.
    """
    tasks: list[float] = []
    total = measured = 0.0
    streams = 0
    for group in group_by_poison([(cell, None) for cell in recipe.cells()]):
        seconds = 0.0
        poisoned: set[Hashable] = set()
        for cell, _ in group:
            batches = count_batches(cell, recipe.batches)
            first = first_surrogate(cell.method, cell.setting.preset) if cell.attack else None
            attacked = max(count_attacked(cell, batches) - (first in poisoned), 0) if cell.attack else 0
            poisoned.add(first)
            served = batches + (count_attacked(cell, batches) if cell.owned else 0)
            one = costs.estimate(cell, served, attacked, device=device, table=table)
            seconds, measured, streams = seconds + one.seconds, measured + one.measured, streams + 1
        tasks.append(seconds)
        total += seconds
    loads = [0.0] * gpus
    for seconds in sorted(tasks, reverse=True):
        heapq.heappush(loads, heapq.heappop(loads) + seconds)
    return Plan(streams, len(tasks), total, max(loads), max(tasks, default=0.0), measured / total if total else 0.0)
