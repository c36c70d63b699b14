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
    """Answers a batch with a moving average of the batches before it, and lets the batch in afterwards.

    Every attack of the MedBN paper is within a batch: a few of its images move the statistics that all the others are
    normalised with. Here no image's prediction depends on another image of its batch, so there is nothing to move,
    whatever the attacker knows. What is left is to poison a batch so as to harm later ones. One batch weighs
    ``momentum`` in those, and a robust estimator bounds what its malicious images make of that; an attacker who hits
    every batch has her share of them all, as with batch statistics, but must know beforehand whom to harm.

    The average starts at the training statistics, and these and all batches so far weigh alike until a batch would
    weigh less than ``momentum``. So the first batch is answered by the source model, and after a change of the images
    it takes about 1 / ``momentum`` batches to forget.

    A batch's statistics are taken in the forward pass that answers it, so they are those of activations that the
    average *before* the batch has normalised. As long as a batch has a large weight, that is a bad guess for deep
    layers. So the first few batches are looked at again, in a second forward pass that an average with the batch
    normalises, as sEMA does.

    What an attacker differentiates (``surrogate``) is the batch under an average that includes it, which is what the
    same images would be answered with if they came once more: all that she can still change.

    Args:
        model: the model to adapt.
        momentum: the weight of a batch. A larger one follows changes sooner, and gives a poisoned batch more.
        second_looks: how many batches are looked at in a second forward pass, from the start or ``reset()`` on.
        options: those of Adapter.
    """

    policy = policies.ema(0.0)

    def __init__(self, model: nn.Module, *, momentum: float = 0.05, second_looks: int = 5, **options: Any) -> None:
        super().__init__(model, **options)
        if not isinstance(second_looks, int) or second_looks < 0:
            raise ValueError(f"second_looks is a number of batches, at least 0; got {second_looks!r}.")
        self.momentum = policies.ema(momentum).weight
        self.second_looks = second_looks
        self.memory["batches"] = 0
        self._weigh()

    @contextmanager
    def averaging(self, weightless: bool = True) -> Iterator[Callable[[], None]]:
        """Watch the statistics of an answer, unless there will be a second look."""
        if self._looks_again():
            yield lambda: None
            return
        with super().averaging(weightless) as commit:
            yield lambda: self._let_in(commit)

    def update(self, inputs: Inputs, output: Any) -> bool:
        """Look at the batch again, now that it is answered, and let it in."""
        if self._looks_again():
            view = hooks.normalising_with(self.model, self.looking)
            with torch.no_grad(), view, super().averaging() as commit:
                self.run(inputs)
            self._let_in(commit)
        return False

    def attacked(self, state: dict[str, Any]) -> AbstractContextManager[None]:
        """With an average that includes the batch."""
        return hooks.normalising_with(self.model, self._weighing(state["memory"]))

    def _looks_again(self) -> bool:
        return bool(self.memory["batches"] < self.second_looks)

    def _let_in(self, commit: Callable[[], None]) -> None:
        with hooks.normalising_with(self.model, self.looking):
            commit()
        self.memory["batches"] += 1
        self._weigh()

    def _set_rest(self, state: dict[str, Any]) -> None:
        super()._set_rest(state)
        self._weigh()

    def _weigh(self) -> None:
        self.looking = self._weighing(self.memory)
        """With which the next batch is let in."""

    def _weighing(self, memory: dict[str, Any]) -> Policy:
        return policies.ema(max(self.momentum, 1.0 / (memory["batches"] + 2)))
