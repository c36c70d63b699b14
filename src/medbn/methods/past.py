"""Past: every batch is answered with what was seen in the batches before it. Ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from .. import hooks, policies
from ..policies import Policy
from ._call import Inputs
from .base import Adapter


class Past(Adapter):
    """Answers a batch with a moving average of the batches before it, and lets the batch in afterwards.

    Every attack of the MedBN paper is within a batch: a few of its images move the statistics that all the others are
    normalised with. Here no image's prediction depends on another image of its batch, so there is nothing to move,
    whatever the attacker knows. What is left is to poison a batch so as to harm later ones. One batch weighs
    ``momentum`` in those, and a robust estimator bounds what its malicious images make of that; an attacker who hits
    every batch has her share of them all, as with batch statistics. To hit a target she must know it beforehand;
    to harm everybody she need know nobody.

    Images weigh alike, however calls are cut: one of few images, or of few that are finite and not padding, weighs
    accordingly less. A median needs company all the same: statistics of a single image are that image's own, so that
    many such calls add up to a mean. Collect images into batches before they are answered.

    The average starts at the training statistics, and these, as ``batch_size`` images, and all images so far weigh
    alike until a batch would weigh less than ``momentum``. So the first batch is answered by the source model, and
    after a change of the images it takes about 1 / ``momentum`` batches to forget.

    A batch's statistics are taken in the forward pass that answers it, so they are those of activations that the
    average *before* the batch has normalised. As long as a batch has a large weight, that is a bad guess for deep
    layers. So the first few batches are looked at again, in a second forward pass that an average with the batch
    normalises, as sEMA does.

    What an attacker differentiates (``surrogate``) is the batch under an average that includes it, which is what the
    same images would be answered with if they came once more: all that she can still change.

    Args:
        model: the model to adapt.
        momentum: the weight of a batch. A larger one follows changes sooner, and gives a poisoned batch more.
        batch_size: how many images that batch has.
        second_looks: how many batches are looked at in a second forward pass, from the start or ``reset()`` on.
        options: those of Adapter.
    """

    policy = policies.ema(0.0)

    def __init__(
        self,
        model: nn.Module,
        *,
        momentum: float = 0.05,
        batch_size: int = 200,
        second_looks: int = 5,
        **options: Any,
    ) -> None:
        super().__init__(model, **options)
        for name, value, least in (("batch_size", batch_size, 1), ("second_looks", second_looks, 0)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                of = "images" if name == "batch_size" else "batches"
                raise ValueError(f"{name} is a number of {of}, at least {least}; got {value!r}.")
        self.momentum = policies.ema(momentum).weight
        self.batch_size = batch_size
        self.second_looks = second_looks
        self.memory |= {"batches": 0, "images": 0}

    @contextmanager
    def averaging(self, always_estimate: bool = True) -> Iterator[Callable[[], Callable[[int], None]]]:
        """Watch the statistics of an answer, unless there will be a second look."""
        if self._looks_again():
            yield lambda: lambda images: None
            return
        with super().averaging(always_estimate) as gather:
            yield gather

    def let_in(self, commit: Callable[..., None], images: int) -> None:
        """With the weight of so many images."""
        commit(self.weighing(images, self.memory))
        self.memory["batches"] += 1
        self.memory["images"] += images

    def update(self, inputs: Inputs, output: Any) -> bool:
        """Look at the batch again, now that it is answered, and let it in."""
        if self._looks_again():
            images = int(inputs.finite_in(output).sum())
            view = hooks.use_policy(self.model, self.weighing(images, self.memory))
            with torch.no_grad(), view, super().averaging() as gather:
                self.run(inputs)
            gather()(images)
        return False

    def settled(self) -> bool:
        """Once there are no second looks."""
        return not self._looks_again()

    def attacked(self, state: dict[str, Any], images: int) -> AbstractContextManager[None]:
        """With an average that includes the batch."""
        return hooks.use_policy(self.model, self.weighing(images, state["memory"]))

    def weighing(self, images: int, memory: dict[str, Any]) -> Policy:
        """How a batch of so many images is let in, given what is remembered."""
        most = images / (self.batch_size + images)
        counted = images / (self.batch_size + memory["images"] + images)
        return policies.ema(min(max(self.momentum * (images / self.batch_size), counted), most))

    def extra_repr(self) -> str:
        """What it remembers, which its layers do not show."""
        return f"momentum={self.momentum:g}, batch_size={self.batch_size}, second_looks={self.second_looks}"

    def _looks_again(self) -> bool:
        return bool(self.memory["batches"] < self.second_looks)
