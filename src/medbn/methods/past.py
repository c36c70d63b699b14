"""Past: predict every batch with statistics of the batches before it. Ours."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from .. import hooks, policies
from ..policies import Policy
from ._call import Inputs
from ._registry import register
from .base import Adapter


@register("past")
class Past(Adapter):
    """Normalises a batch with a moving average of the batches before it, and commits the batch afterwards.

    Every attack of the MedBN paper is within a batch: a few of its images move the statistics that normalise all the
    others. Here no image's prediction depends on another image of its batch, so such an attack has no effect, whatever
    the attacker knows. What remains is to poison a batch in order to harm later ones. One batch weighs ``momentum`` in
    those, and a robust estimator bounds how far its malicious images move its statistics. An attacker of every batch
    has her fraction of all of them, as with batch statistics. To hit a target she must know it in advance; to raise
    the error of all images she need not.

    Every image has the same weight, however the stream is cut into calls: a call with few images, or with few that are
    finite and not padding, weighs accordingly less. A median still needs many images: the statistics of a single image
    are that image's own, so many calls with one image add up to a mean. Collect images into batches before calling.

    The average starts at the training statistics. These count as ``batch_size`` images, and they and all images so far
    weigh the same until a batch would weigh less than ``momentum``. So the first batch is predicted by the source
    model, and after a change of the images it takes about 1 / ``momentum`` batches to forget.

    A batch's statistics are taken in the forward pass that predicts it, so they are those of activations normalised by
    the average *before* the batch. As long as a batch has a large weight, that is a poor approximation in deep layers.
    So the first few batches are passed through the model a second time, normalised by an average that includes the
    batch, as in sEMA, and those statistics are committed.

    The surrogate that an attacker differentiates normalises the batch with an average that includes it. That is how the
    same images would be predicted if they came again: all that the attacker can still change.

    Args:
        model: the model to adapt.
        momentum: the weight of a batch. A larger one follows changes sooner, and gives a poisoned batch more weight.
        batch_size: how many images that batch has.
        two_pass_batches: how many batches have a second forward pass, from the start or ``reset()`` on.
        options: those of Adapter.
    """

    policy = policies.ema(0.0)
    surrogate_from_policies: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        *,
        momentum: float = 0.05,
        batch_size: int = 200,
        two_pass_batches: int = 5,
        **options: Any,
    ) -> None:
        super().__init__(model, **options)
        for name, value, least in (("batch_size", batch_size, 1), ("two_pass_batches", two_pass_batches, 0)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                of = "images" if name == "batch_size" else "batches"
                raise ValueError(f"{name} is a number of {of}, at least {least}; got {value!r}.")
        self.momentum = policies.ema(momentum).weight
        self.batch_size = batch_size
        self.two_pass_batches = two_pass_batches
        self.memory |= {"batches": 0, "images": 0}

    def commits_prediction(self) -> bool:
        """Return whether this batch has one pass only."""
        return bool(self.memory["batches"] >= self.two_pass_batches)

    def update(self, inputs: Inputs, output: Any) -> bool:
        """Run the second pass of an early batch, and commit its statistics."""
        if not self.commits_prediction():
            images = int(inputs.finite_images(output).sum())
            normalise = hooks.use_policy(self.model, self.commit_policy(images, self.memory))
            with torch.no_grad(), normalise, self.observe_statistics() as gather:
                self.run_model(inputs)
            self.commit(gather(), images)
        return False

    def commit_policy(self, images: int, memory: dict[str, Any]) -> Policy:
        """Return the average with the weight of a batch of that many images after those in ``memory``."""
        most = images / (self.batch_size + images)
        equal = images / (self.batch_size + memory["images"] + images)
        return policies.ema(min(max(self.momentum * (images / self.batch_size), equal), most))

    def remember(self, images: int) -> None:
        """Count the batch and its images."""
        self.memory["batches"] += 1
        self.memory["images"] += images

    def extra_repr(self) -> str:
        """Return the options that the layers do not show."""
        return f"momentum={self.momentum:g}, batch_size={self.batch_size}, two_pass_batches={self.two_pass_batches}"
