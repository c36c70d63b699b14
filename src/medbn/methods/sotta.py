"""SoTTA: robust test-time adaptation on noisy data streams (Gong et al., NeurIPS 2023)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .. import hooks, policies
from .._errors import unknown_name
from ._call import Inputs, Predictions, mean_over
from .base import Learner

HELD = policies.ema(0.0)
"""What the layers hold, without the batch at hand."""


class SoTTA(Learner):
    """Learns from a memory of confident images, balanced over the classes, by SAM on their entropy.

    Args:
        model: the model to adapt.
        capacity: images in memory; 64 in SoTTA's paper.
        confidence: images predicted with less than this are not remembered; 0.99 on CIFAR-10, 0.66 on CIFAR-100, 0.33
            on ImageNet, as in SoTTA's paper.
        rho: how far uphill SAM looks; 0.05 in SoTTA's paper.
        momentum: the weight of the new statistics in the moving average; 0.2 in SoTTA's paper.
        statistics: whose statistics enter the moving average. ``"batch"``, as the MedBN paper uses SoTTA: those of the
            test batch, which is normalised with the average that includes it. ``"memory"``, SoTTA's own rule: those of
            the memory, on which it learns with the memory's own statistics, and the test batch has no part in them.
        options: those of Learner; the affine parameters of the last stage are not learned, as in SoTTA's code.

    One SAM step per call, on the whole memory. Confidences come from one pass with the average before the batch.
    """

    keeps_last_stage: ClassVar[bool] = True
    presets: ClassVar[dict[str, dict[str, Any]]] = {"cifar100": {"confidence": 0.66}, "imagenet": {"confidence": 0.33}}

    def __init__(
        self,
        model: nn.Module,
        *,
        capacity: int = 64,
        confidence: float = 0.99,
        rho: float = 0.05,
        momentum: float = 0.2,
        statistics: str = "batch",
        **options: Any,
    ) -> None:
        if statistics not in ("batch", "memory"):
            raise unknown_name("statistics", statistics, ("batch", "memory"))
        if capacity < 1:
            raise ValueError(f"capacity is the number of images in memory, at least 1; got {capacity}.")
        super().__init__(model, **options)
        self.policy = policies.ema(momentum)
        self.capacity = capacity
        self.confidence = confidence
        self.rho = rho
        self.statistics = statistics
        self.memory |= {"images": {}, "classes": []}

    def normalising(self) -> AbstractContextManager[None]:
        """By SoTTA's own rule a test batch has no part in the average that normalises it."""
        return nullcontext() if self.statistics == "batch" else hooks.use_policy(self.model, HELD)

    def let_in(self, commit: Callable[..., None], images: int) -> None:
        """By its own policy, whatever the layers followed when they saw the images."""
        commit(self.policy)

    def fails_late(self) -> bool:
        """Always: it remembers before it learns."""
        return True

    def update(self, inputs: Inputs, output: Any) -> bool:
        """Remember the confident images, then learn from the whole memory."""
        if self.statistics == "batch":
            with torch.no_grad(), hooks.use_policy(self.model, HELD):
                output = self.run(inputs)
        self._remember(inputs, self.predictions(inputs, output))
        if not self.memory["classes"]:
            return False
        memory = inputs.with_images(self.memory["images"], len(self.memory["classes"]))
        steps = [self._step(memory) for _ in range(self.steps)]
        return any(steps)

    def _step(self, inputs: Inputs) -> bool:
        """One sharpness-aware step on the memory's entropy; by SoTTA's own rule with the memory's own statistics."""
        own = nullcontext() if self.statistics == "batch" else hooks.use_policy(self.model, policies.batch())
        with self.counting(inputs), own:
            with self.averaging() as gather:
                loss = self._entropy(inputs)
            if loss is None:
                return False
            with self.ascended(self.gradients(loss), self.rho):
                loss = self._entropy(inputs)
                gradients = None if loss is None else self.gradients(loss)
            if gradients is None or not self.descend(gradients):
                return False
        if self.statistics == "memory":
            gather()(inputs.size)
        return True

    def loss(self, predictions: Predictions, memory: dict[str, Any], learned: dict[str, Tensor]) -> Tensor | None:
        """The mean entropy of the memory."""
        return mean_over(predictions.entropy(), predictions.usable) if bool(predictions.usable.any()) else None

    def _entropy(self, inputs: Inputs) -> Tensor | None:
        return self.loss(self.look(inputs), self.memory, dict(self.learned))

    def unrolled(
        self, logits: Callable[[dict[str, Tensor]], Tensor], state: dict[str, Any], inputs: Inputs
    ) -> dict[str, Tensor]:
        """Refused: which images enter the memory is no smooth function of the batch."""
        raise ValueError(
            "SoTTA cannot be unrolled: it learns from its memory, not from the batch at hand; use unroll=0."
        )

    def _remember(self, inputs: Inputs, predictions: Predictions) -> None:
        """High-confidence uniform-class sampling (HUS): the largest class gives way when it is full."""
        probabilities = predictions.probabilities().view(inputs.size, -1, predictions.classes)
        # Dense outputs: an image counts by its mean confidence, and for its most frequent class.
        confidence = probabilities.amax(dim=2).mean(dim=1)
        confident = predictions.images & (confidence >= self.confidence)
        candidates = confident.nonzero().flatten().tolist()
        if not candidates:
            return
        found = probabilities.argmax(dim=2).mode(dim=1).values.tolist()
        old, new = self.memory["images"], inputs.images()
        self._check_alike(old, new)
        classes = list(self.memory["classes"])
        kept = list(range(len(classes)))  # where each image comes from: the memory, then the batch behind it
        offset = len(classes)
        for image in candidates:
            while len(kept) >= self.capacity:
                gone = self._gives_way(classes, found[image])
                del kept[gone], classes[gone]
            kept.append(offset + image)
            classes.append(found[image])
        both = {place: torch.cat([old[place], images]) if old else images for place, images in new.items()}
        self.memory["images"] = {
            place: images[torch.tensor(kept, device=images.device)].detach() for place, images in both.items()
        }
        self.memory["classes"] = classes

    def _check_alike(self, old: dict[str, Tensor], new: dict[str, Tensor]) -> None:
        shapes = [{place: tuple(images.shape[1:]) for place, images in each.items()} for each in (old, new)]
        if old and shapes[0] != shapes[1]:
            raise ValueError(
                f"SoTTA remembers images of shape {list(shapes[0].values())}, and this batch has"
                f" {list(shapes[1].values())}; one adapter serves one kind of call, or reset() it first."
            )

    def _gives_way(self, classes: list[int], incoming: int) -> int:
        """Which image to forget: a random one of the incoming class if no class is larger, else of a largest one."""
        counts = Counter(classes)
        largest = [c for c, n in sorted(counts.items()) if n == max(counts.values())]
        chosen = incoming if incoming in largest else largest[self._random(len(largest))]
        places = [i for i, c in enumerate(classes) if c == chosen]
        return places[self._random(len(places))]

    def _random(self, below: int) -> int:
        return int(torch.randint(below, (), generator=self.generator))
