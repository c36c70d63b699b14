"""How the learning rate changes from step to step."""

from __future__ import annotations

import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

SCHEDULES = ("one-cycle", "cosine")
"""By name: "one-cycle" rises for a third of the steps and then falls (Smith and Topin, 2018); "cosine" rises for a
twentieth and then falls to 0 along a cosine (Loshchilov and Hutter, 2017)."""
WARM_UP = 0.05
"""The share of the steps in which the learning rate of "cosine" rises."""


def make_schedule(name: str, optimizer: Optimizer, lr: float, steps: int) -> LRScheduler:
    """Return a schedule over a number of steps.

    Args:
        name: one of ``SCHEDULES``.
        optimizer: what it sets the learning rate of, which is ``lr`` there.
        lr: the highest learning rate.
        steps: of the whole run.
    """
    if name == "one-cycle":
        return OneCycleLR(optimizer, lr, total_steps=steps)
    return LambdaLR(optimizer, lambda done: cosine(done, steps))


def cosine(done: int, steps: int) -> float:
    """Return the learning rate after some steps, relative to the highest: a linear rise, then half a cosine.

    >>> [round(cosine(done, 100), 3) for done in (0, 4, 5, 52, 100)]
    [0.2, 1.0, 1.0, 0.508, 0.0]
    """
    rise = max(1, round(WARM_UP * steps))
    if done < rise:
        return (done + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (done - rise) / max(1, steps - rise)))
