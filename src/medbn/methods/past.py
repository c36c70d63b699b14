"""Past: every batch is answered with what was seen in the batches before it. Ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from .. import hooks, policies
from .base import Adapter
from .calls import Inputs


class Past(Adapter):
    """Answers a batch with a moving average of the batches before it, and looks at the batch afterwards.

    Every attack of the MedBN paper is within a batch: a few of its images move the statistics that all the others are
    normalised with. Here no image's prediction depends on another image of its batch, so there is nothing to move,
    whatever the attacker knows. What is left is to poison a batch so as to harm a later one. That takes an attacker who
    knows images that are yet to come; one batch weighs ``momentum`` then, and a robust estimator bounds what its
    malicious images make of that.

    The average is sEMA's: it starts at the training statistics, a batch is looked at normalised with an average that
    includes it, and the training statistics and all batches so far weigh alike until a batch would weigh less than
    ``momentum``. So the first batch is answered by the source model, and after a change of the images it takes about
    1 / ``momentum`` batches to forget. To look at a batch takes a second forward pass, after the answer.

    Args:
        model: the model to adapt.
        momentum: the weight of a batch. A larger one follows changes sooner, and gives a poisoned batch more.
        every: look at the first batch of every so many only. With 4, looking adds a quarter of a forward pass.
        options: those of Adapter.
    """

    policy = policies.ema(0.0)

    def __init__(self, model: nn.Module, *, momentum: float = 0.05, every: int = 1, **options: Any) -> None:
        super().__init__(model, **options)
        if not isinstance(every, int) or every < 1:
            raise ValueError(f"every is a number of batches, at least 1; got {every!r}.")
        self.momentum = policies.ema(momentum).weight
        self.every = every
        self.memory |= {"batches": 0, "seen": 0}

    @contextmanager
    def averaging(self) -> Iterator[Callable[[], None]]:
        """An answer leaves no trace."""
        yield lambda: None

    def update(self, inputs: Inputs, output: Any) -> bool:
        """Look at the batch, now that it is answered, and let it in."""
        if self.memory["batches"] % self.every == 0:
            weight = max(self.momentum, 1.0 / (self.memory["seen"] + 2))
            with torch.no_grad(), hooks.normalising_with(self.model, policies.ema(weight)):
                with super().averaging() as commit:
                    self.run(inputs)
                commit()
            self.memory["seen"] += 1
        self.memory["batches"] += 1
        return False
