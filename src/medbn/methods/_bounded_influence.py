"""Bounded influence: no image of a batch moves the learned parameters far. ``Learner`` says how far, and why.

Statistics are those of ``past``, so that an image's pull on the parameters depends on no other image, and each pull is
bounded (``_influence.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor

from .. import policies
from .._errors import unknown_name
from ..policies import Policy
from ._call import Inputs, mean_over
from ._influence import KINDS, ImageGradients, combine
from ._method import Commit
from ._past_average import PastAverage
from .base import Adapter

WITHOUT_BATCH = policies.ema(0.0)
"""The moving average alone, without the batch at hand."""
SHORTEST = 0.1
"""The norm of a gradient, over ``clip``, below which SAM's ascent is shorter, where influence is bounded."""


class BoundedInfluence(Adapter):
    """An adapter that learns, and may bound what each image does to what is learned."""

    keeps_average: ClassVar[bool] = False
    """Whether the method normalises with a moving average of its own, which bounded influence leaves as it is."""
    counts: ClassVar[tuple[str, ...]] = (*Adapter.counts, "past_batches", "past_images")

    influence: str | None = None
    clip: float = 1.0
    past_average: PastAverage | None = None
    """How the statistics of earlier batches are averaged, which take the place of the batch's; None if they do not."""
    _images: ImageGradients | None = None
    _without_batch = False

    def bound_influence(self, influence: str | None, clip: float, past_momentum: float | None) -> None:
        """Check the options, and replace the batch's statistics; the constructor calls this."""
        if influence is not None and influence not in KINDS:
            raise unknown_name("influence", influence, KINDS)
        if clip <= 0:
            raise ValueError(f"clip is the norm of the longest pull, above 0; got {clip!r}.")
        self.influence, self.clip = influence, clip
        average = None if past_momentum is None else PastAverage(policies.ema(past_momentum).weight)
        self._without_batch = influence is not None and average is not None
        if self._without_batch and not self.keeps_average:
            self.past_average = average
            self.policy = WITHOUT_BATCH
            self.memory |= {"past_batches": 0, "past_images": 0}

    def watch_images(self) -> None:
        """Prepare to take the gradients of single images, once the parameters to learn are chosen."""
        if self.group is not None:
            raise ValueError("influence= is for one process: pulls of a group's parts of a batch are not combined.")
        self._images = ImageGradients(self.model, self.learned)

    # --- losses ---

    def mean_of(self, values: Tensor, rows: Tensor) -> Tensor:
        """Return the mean of the values that the mask ``rows`` marks; 0 if it marks none.

        Where influence is bounded it is their sum, divided by the number of all rows, so that one image does not change
        the weight of the others.
        """
        return mean_over(values, rows) if self.influence is None else torch.where(rows, values, 0.0).sum() / len(rows)

    def nothing_to_learn(self, rows: Tensor) -> bool:
        """Return whether a mask of what is learned from is empty, so that no step is taken.

        Where influence is bounded a step is taken in any case, because that must not depend on a single image.
        """
        return self.influence is None and not bool(rows.any())

    def unbounded(self, memory: dict[str, Any], learned: dict[str, Tensor]) -> Tensor | None:
        """Return the part of the loss in which no image has a part, so that bounded influence keeps it as it is."""
        return None

    def perturbation(self, gradients: Sequence[Tensor], rho: float) -> list[Tensor]:
        """Return SAM's move; where influence is bounded it is shorter for gradients below a tenth of ``clip``."""
        return sam_perturbation(gradients, rho, 0.0 if self.influence is None else SHORTEST * self.clip)

    # --- bounded influence --------------------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Predict and, unless it is paused, adapt, as ``Adapter`` says."""
        try:
            return super().forward(*args, **kwargs)
        finally:
            if self._images is not None:
                self._images.clear()

    def _predict(self, inputs: Inputs) -> tuple[Any, Commit | None]:
        with nullcontext() if self._images is None else self._images.watch(self.model):
            return super()._predict(inputs)

    @contextmanager
    def learning_pass(self) -> Iterator[None]:
        """Run a pass inside that is learned from: where influence is bounded, without statistics of its batch."""
        if self._images is None:
            yield
            return
        normalise = self.use_policy(WITHOUT_BATCH) if self._without_batch else nullcontext()
        with normalise, self._images.watch(self.model):
            yield

    def bounded_gradients(
        self, loss: Tensor, learned: dict[str, Tensor], memory: dict[str, Any], *, create_graph: bool = False
    ) -> list[Tensor]:
        """Return the gradient with each image's part bounded, for every learned parameter."""
        assert self._images is not None
        assert self.influence is not None
        parameters = list(learned.values())
        total = {name: torch.zeros_like(p) for name, p in learned.items()}
        for pulls in self._images.of(loss, parameters, create_graph=create_graph):
            for name, gradient in combine(pulls, self.influence, self.clip).items():
                total[name] = total[name] + gradient.to(total[name].dtype)
        rest = self.unbounded(memory, learned)
        if rest is not None and rest.requires_grad:
            found = torch.autograd.grad(rest, parameters, allow_unused=True, create_graph=create_graph)
            for name, own in zip(learned, found, strict=True):
                total[name] = total[name] if own is None else total[name] + own
        return list(total.values())

    def commits_prediction(self) -> bool:
        """Return whether the averages take the statistics of the pass that predicts; not of the first, as ``past``."""
        return self.past_average is None or bool(self.memory["past_batches"] >= self.past_average.two_pass_batches)

    def commit_policy(self, images: int, memory: dict[str, Any]) -> Policy | None:
        """Return the average with the weight of the next batch, where statistics are those of ``past``."""
        return None if self.past_average is None else self.past_average.policy(images, memory["past_images"])

    def commit(self, commit: Commit, images: int, inputs: Inputs, output: Any) -> None:
        """Commit the batch, and count it where statistics are those of ``past``."""
        super().commit(commit, images, inputs, output)
        if self.past_average is not None:
            self.memory["past_batches"] += 1
            self.memory["past_images"] += min(images, self.past_average.batch_size)

    def commit_second_pass(self, inputs: Inputs, images: int) -> None:
        """Commit the statistics of an early batch in a pass that is normalised with an average that includes it."""
        policy = self.commit_policy(images, self.memory)
        assert policy is not None
        with torch.no_grad(), self.ignore_padding(inputs), self.use_policy(policy), self.observe_statistics() as gather:
            output = self.run_model(inputs)
        self.commit(gather(), images, inputs, output)


def sam_perturbation(gradients: Sequence[Tensor], rho: float, shortest: float = 0.0) -> list[Tensor]:
    """Return ρ·g/‖g‖ for each parameter, where ‖g‖ is the norm over all of them, and at least ``shortest``."""
    norm = torch.stack([g.norm() for g in gradients]).norm() + 1e-12
    scale = rho / norm.clamp(min=shortest)
    return [g * scale for g in gradients]
