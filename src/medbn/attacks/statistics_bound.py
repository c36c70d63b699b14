"""An upper bound on attacks within a batch: move the statistics of the layers themselves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from .. import hooks
from .._check_types import check_fields
from ..layers import RobustBatchNorm
from ..methods import Adapter, Surrogate, predict_logits
from ._batch import Batch
from ._boxes import Box, box_of
from .base import Malicious
from .objectives import Objective, Targeted

KERNELS = ("mean", "median", "mad", "mad_scaled", "image_median")


class Reached(NamedTuple):
    """What the statistics could be moved to."""

    harm: float
    """Of the objective: 1 for a target that has fallen."""
    value: float
    """The objective."""
    logits: Tensor
    """Of the benign images."""


@dataclass(frozen=True)
class StatisticsBound:
    """Move each layer's centre and variance to where malicious images could have them, without any image.

    For each layer the benign activations, given the statistics of the layers before it, say between which order
    statistics m malicious images of n can move the estimator. Everything that any images could do to the layers lies in
    this box, and more: images are valid, and one image moves all channels and layers at once. The objective is raised
    by sign-gradient ascent over all centres and variances in it, for ``median``, ``image_median``, ``mad``, and these
    with a prior. A mean has no bounds: its box is a thousand standard deviations wide. So is the variance of
    ``median``, which is a mean, upwards.

    Where even this does not reach the target, that is strong evidence for the estimator. It is **no proof**: gradient
    ascent may miss what is in the box. Where it does, and no images were found that do, the attacks were too weak or
    the box is too wide. It is about statistics alone: what images do to a prior over predictions (ROID, LAME), to what
    is learned, or to later batches is not in it.

    Args:
        objective: what to maximise, on benign images; the target's index is that in the whole batch.
        steps: of the ascent.
        step_size: of a step, where a box is 1 wide.
        restarts: attempts; the first starts at the statistics of the benign images, the others at random.
        seed: of the random starts.
    """

    objective: Objective = field(default_factory=Targeted)
    steps: int = 60
    step_size: float = 0.05
    restarts: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.steps < 0 or self.restarts < 1 or not self.step_size > 0:
            raise ValueError("steps are from 0 on, restarts from 1 on, and step_size is above 0.")
        if self.objective.own or self.objective.observes:
            raise ValueError(f"a bound needs an objective on benign images, not {self.objective!r}.")

    def __call__(self, adapter: Adapter, images: Tensor, labels: Tensor, malicious: Malicious) -> Reached:
        """Return the most harm that was reached on a batch; the malicious images are not read.

        Args:
            adapter: the victim; it does not change.
            images: a batch in [0, 1].
            labels: the true class of every image.
            malicious: which images are malicious.
        """
        batch = Batch.of(images, labels, malicious)
        self.objective.check(batch.labels, batch.benign)
        for name, layer in adapter.layers.items():
            if layer.estimator.kernel not in KERNELS:
                raise ValueError(
                    f"layer {name!r} has the estimator {layer.estimator.name!r}, of which no bounds are known; known"
                    f" are {', '.join(KERNELS)}, also with a prior."
                )
        generator = torch.Generator().manual_seed(self.seed)
        surrogate = adapter.surrogate()
        attempts = [self._ascend(adapter, surrogate, batch, generator, k > 0) for k in range(self.restarts)]
        return max(attempts, key=lambda reached: (reached.harm, reached.value))

    def rate(
        self, adapter: Adapter, stream: Iterable[tuple[Tensor, Tensor]], malicious: Malicious
    ) -> tuple[float, int]:
        """Return the mean harm over the batches of a stream, and their number.

        For a target, that harm is how often it falls. Each batch is attacked from the state that the clean batches
        before it have left, as in ``instant``.
        """
        harms = []
        for images, labels in stream:
            harms.append(self(adapter, images, labels, malicious).harm)
            predict_logits(adapter, images)
        if not harms:
            raise ValueError("the stream has no batch.")
        return sum(harms) / len(harms), len(harms)

    def _ascend(
        self, adapter: Adapter, surrogate: Surrogate, batch: Batch, generator: torch.Generator, random: bool
    ) -> Reached:
        """Return the best of all steps from one start."""
        places: dict[tuple[RobustBatchNorm, int], Tensor] = {}
        best: Reached | None = None
        for _ in range(self.steps + 1):
            with torch.enable_grad():
                logits = self._predict(adapter, surrogate, batch, places, generator, random)
                value = self.objective.value(logits, batch.labels, batch.benign)
                moving = list(places.values())
                # Without a batch weight in any layer, nothing moves.
                gradients = torch.autograd.grad(value, moving, allow_unused=True) if value.requires_grad else ()
            harm = self.objective.harm(logits.detach(), batch.labels, batch.benign).item()
            reached = Reached(harm, value.item(), logits.detach()[batch.benign])
            if best is None or reached[:2] > best[:2]:
                best = reached
            for (key, place), gradient in zip(list(places.items()), gradients, strict=False):
                step = torch.zeros_like(place) if gradient is None else gradient.nan_to_num(0.0).sign()
                places[key] = (place.detach() + self.step_size * step).clamp(0.0, 1.0).requires_grad_()
        assert best is not None
        return best

    def _predict(
        self,
        adapter: Adapter,
        surrogate: Surrogate,
        batch: Batch,
        places: dict[tuple[RobustBatchNorm, int], Tensor],
        generator: torch.Generator,
        random: bool,
    ) -> Tensor:
        """Return the logits of the whole batch, those of malicious images being 0, with statistics at their places.

        A place is ``(2, C)``: where in their boxes a layer's centre and variance are, from 0 to 1.
        """
        passes: dict[RobustBatchNorm, int] = {}

        def choose(layer: RobustBatchNorm, x: Tensor, centre: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
            passes[layer] = passes.get(layer, 0) + 1
            weight, running = layer._batch_weight, None
            if weight < 1.0:
                running = tuple(s.to(centre) for s in layer._running_statistics())
            box = box_of(x, len(batch.indices), layer.estimator.kernel or "")
            key = (layer, passes[layer])
            if key not in places:
                start = (
                    torch.rand(2, len(centre), generator=generator).to(centre)
                    if random
                    else _find(box, centre, variance)
                )
                places[key] = start.detach().requires_grad_()
            where = places[key]
            own = box.low + where[0] * (box.high - box.low)
            least, most = (v.clamp(min=1e-12) for v in box.variance(own))
            wide = (most / least).log()  # variances may differ by orders of magnitude
            spread = least * torch.exp(where[1] * wide)
            if running is None:
                return own, spread
            return weight * own + (1 - weight) * running[0], weight * spread + (1 - weight) * running[1]

        with hooks.choose_statistics(adapter.model, choose):
            benign = surrogate(batch.images[batch.benign])
        logits = benign.new_zeros((len(batch.images), *benign.shape[1:]))
        return logits.index_put((batch.benign.nonzero().flatten(),), benign)


def _find(box: Box, centre: Tensor, variance: Tensor) -> Tensor:
    """Return the place of these statistics."""
    wide = (box.high - box.low).clamp(min=1e-12)
    least, most = (v.clamp(min=1e-12) for v in box.variance(centre))
    first = (centre - box.low) / wide
    second = (variance.clamp(min=1e-12) / least).log() / (most / least).log().clamp(min=1e-12)
    return torch.stack([first, second]).clamp(0.0, 1.0)
