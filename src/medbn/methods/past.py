"""Past: every batch is answered with what was seen in the batches before it. Ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from .. import hooks, policies
from ..policies import Policy
from .base import Adapter
from .calls import Inputs


class Past(Adapter):
    """Answers a batch with a moving average of the batches before it, and looks at the batch afterwards.

    Every attack of the MedBN paper is within a batch: a few of its images move the statistics that all the others are
    normalised with. Here no image's prediction depends on another image of its batch, so there is nothing to move,
    whatever the attacker knows. What is left is to poison a batch so as to harm later ones. One batch weighs
    ``momentum`` in those, and a robust estimator bounds what its malicious images make of that; an attacker who hits
    every batch has her share of them all, as with batch statistics, but must know beforehand whom to harm.

    The average is sEMA's: it starts at the training statistics, a batch is looked at normalised with an average that
    includes it, and the training statistics and all batches so far weigh alike until a batch would weigh less than
    ``momentum``. So the first batch is answered by the source model, and after a change of the images it takes about
    1 / ``momentum`` batches to forget. To look at a batch takes a second forward pass, after the answer.

    What an attacker differentiates (``surrogate``) is the batch under an average that includes it, which is what the
    same images would be answered with if they came once more: all that she can still change.

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
        self._weigh()

    @contextmanager
    def averaging(self) -> Iterator[Callable[[], None]]:
        """An answer leaves no trace."""
        yield lambda: None

    def update(self, inputs: Inputs, output: Any) -> bool:
        """Look at the batch, now that it is answered, and let it in."""
        if self.memory["batches"] % self.every == 0:
            with torch.no_grad(), hooks.normalising_with(self.model, self.looking):
                with super().averaging() as commit:
                    self.run(inputs)
                commit()
            self.memory["seen"] += 1
            self._weigh()
        self.memory["batches"] += 1
        return False

    def attacked(self, state: dict[str, Any]) -> AbstractContextManager[None]:
        """With an average that includes the batch."""
        return hooks.normalising_with(self.model, self._weighing(state["memory"]))

    def _set_rest(self, state: dict[str, Any]) -> None:
        super()._set_rest(state)
        self._weigh()

    def _weigh(self) -> None:
        self.looking = self._weighing(self.memory)
        """With which the next batch is looked at."""

    def _weighing(self, memory: dict[str, Any]) -> Policy:
        return policies.ema(max(self.momentum, 1.0 / (memory["seen"] + 2)))
