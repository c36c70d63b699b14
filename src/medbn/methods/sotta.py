"""SoTTA: robust test-time adaptation on noisy data streams (Gong et al., NeurIPS 2023)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .. import policies
from .._errors import unknown_name
from ._bounded_influence import WITHOUT_BATCH
from ._call import Inputs, Predictions
from ._check_state import Values
from ._image_memory import Candidates, check_remembered, predicted_classes
from ._method import Run
from ._registry import register
from ._step_graph import Gather, gather_nothing
from .learner import Learner

STATISTICS = ("batch", "memory", "both")


@register("sotta")
class SoTTA(Learner):
    """Learns from a memory of confident images, balanced over the classes, by SAM on their entropy.

    Args:
        model: the model to adapt.
        capacity: images in memory; 64 in SoTTA's paper.
        confidence: images predicted with a lower confidence are not remembered; 0.99 on CIFAR-10, 0.66 on CIFAR-100,
            0.33 on ImageNet, as in SoTTA's paper.
        rho: ρ of SAM; 0.05 in SoTTA's paper.
        momentum: the weight of the new statistics in the moving average; 0.2 in SoTTA's paper.
        statistics: whose statistics enter the moving average.

            - ``"both"``: those of the memory in each of SAM's two passes, then those of the test batch. A pass is
              normalised with the average that includes it. With a momentum of 0.2 the average is 0.512 of what it was,
              0.288 memory and 0.2 batch. This is what the MedBN authors' code does, though their paper does not say so;
              it is the default, so that recipes compare with the paper's numbers.
            - ``"batch"``: those of the test batch alone, as in sEMA. The memory enters no average.
            - ``"memory"``, SoTTA's own rule: those of the memory, which is normalised with its own statistics when it
              is learned from. The test batch is normalised with the average, which does not include it. SoTTA's code
              commits in both passes of SAM, which is a momentum of 0.36 in effect; we commit the first pass.
        options: those of Learner; the affine parameters of the last stage are not learned, as in SoTTA's code.

    One SAM step per call, on the whole memory. Confidences come from one pass with the average before the batch.

    With ``graph=True`` both passes of that step, forward and backward, are replayed from CUDA graphs, once the memory
    is full: before, its size changes. The passes over the test batch run without, because nothing is learned from them,
    and so do all passes of a padded call.
    """

    version: ClassVar[int] = 2  # before, ``statistics`` was ``"batch"``
    freezes_last_stage: ClassVar[bool] = True
    keeps_average: ClassVar[bool] = True
    image_entries: ClassVar[tuple[str, ...]] = (*Learner.image_entries, "images", "classes")
    presets: ClassVar[dict[str, dict[str, Any]]] = {"cifar100": {"confidence": 0.66}, "imagenet": {"confidence": 0.33}}
    surrogate_from_policies: ClassVar[bool] = True
    replays: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        *,
        capacity: int = 64,
        confidence: float = 0.99,
        rho: float = 0.05,
        momentum: float = 0.2,
        statistics: str = "both",
        **options: Any,
    ) -> None:
        if statistics not in STATISTICS:
            raise unknown_name("statistics", statistics, STATISTICS)
        if capacity < 1:
            raise ValueError(f"capacity is the number of images in memory, at least 1; got {capacity}.")
        super().__init__(model, **options)
        self._average = policies.ema(momentum)
        self.policy = WITHOUT_BATCH if statistics == "memory" else self._average
        self.capacity = capacity
        self.confidence = confidence
        self.rho = rho
        self.statistics = statistics
        self.memory |= {"images": {}, "classes": []}

    def commits_prediction(self) -> bool:
        """Return whether the test batch enters the moving average."""
        return self.statistics != "memory"

    def update(self, inputs: Inputs, output: Any) -> bool:
        """Remember the confident images, then learn from the whole memory."""
        if self.graph:
            self._step_graphs.check(self, inputs)
        if self.statistics != "memory":
            with torch.no_grad(), self.use_policy(WITHOUT_BATCH):
                output = self.run_model(inputs)
        self._remember_images(inputs, self.predictions_of(inputs, output))
        if not self.memory["classes"]:
            return False
        memory = inputs.divide(self.memory["images"], len(self.memory["classes"]))
        steps = [self._learn_from(memory) for _ in range(self.steps)]
        return any(steps)

    def _learn_from(self, memory: Inputs) -> bool:
        """Take one SAM step on the memory's entropy, and commit the memory's statistics as ``statistics`` says."""
        own, both = self.statistics == "memory", self.statistics == "both"
        with self._pass_over(memory, observe=own or both) as (loss, gather):
            if loss is None:
                return False
            gradients = self.gradients_of(loss)
        commit = gather()
        if both:
            commit(self._average)
        with self.sam_ascent(gradients, self.rho), self._pass_over(memory, observe=both) as (loss, gather):
            if loss is None:
                return False
            gradients = self.gradients_of(loss)
        if both:
            gather()(self._average)
        if not self.take_step(gradients):
            return False
        if own:
            commit(self._average)
        return True

    @contextmanager
    def _pass_over(self, memory: Inputs, observe: bool) -> Iterator[tuple[Tensor | None, Gather]]:
        """Run a pass over the memory, and yield the loss and what gathers the statistics before the next pass.

        What decides how layers normalise stays so until the gradients have been taken.
        """
        full = len(self.memory["classes"]) == self.capacity
        replayed = self._step_graphs.run(self, memory, observe) if self.graph and full else None
        if replayed is not None:
            output, gather = replayed
            yield self._entropy_of(self.predictions_of(memory, output)), gather
            return
        with self._normalise_memory(memory):
            with self.observe_statistics() if observe else nullcontext(gather_nothing) as gather:
                predictions = self.predict_again(memory)
            yield self._entropy_of(predictions), gather

    @contextmanager
    def _normalise_memory(self, memory: Inputs) -> Iterator[None]:
        own = self.use_policy(policies.batch()) if self.statistics == "memory" else nullcontext()
        with self.ignore_padding(memory), own:
            yield

    def run_model(self, inputs: Inputs) -> Any:
        """Return the model's output for a call, without CUDA graphs: only passes over the memory have some."""
        return self.run_plain(inputs)

    def run_to_learn(self, inputs: Inputs, learned: dict[str, Tensor]) -> Any:
        """Return the model's output for the images of the memory, under these parameters."""
        with self._normalise_memory(inputs):
            return super().run_to_learn(inputs, learned)

    def loss(self, predictions: Predictions, memory: dict[str, Any], learned: dict[str, Tensor]) -> Tensor | None:
        """Return the mean entropy of the usable rows; None if there are none."""
        return self.mean_of(predictions.entropy(), predictions.usable) if bool(predictions.usable.any()) else None

    def _entropy_of(self, predictions: Predictions) -> Tensor | None:
        return self.loss(predictions, self.memory, dict(self.learned))

    def unroll(self, run: Run, state: dict[str, Any], inputs: Inputs) -> dict[str, Tensor]:
        """Raise: which images enter the memory is no smooth function of the batch."""
        raise ValueError(
            "SoTTA cannot be unrolled: it learns from its memory, not from the batch at hand; use unroll=0."
        )

    def filters(self, predictions: Predictions, memory: dict[str, Any]) -> dict[str, Tensor]:
        """Return a mask of the images that are confident enough to be remembered, by the mean of a dense output."""
        confidence = predictions.probabilities().amax(dim=1).view(len(predictions.images), -1).mean(dim=1)
        return {"confidence": predictions.images & (confidence >= self.confidence)}

    def _remember_images(self, inputs: Inputs, predictions: Predictions) -> None:
        """Remember confident images by high-confidence uniform-class sampling (HUS).

        When the memory is full, an image of the largest class is replaced.
        """
        confident = self.filters(predictions, self.memory)["confidence"]
        chosen = confident.nonzero().flatten().tolist()
        if not chosen:
            return
        predicted = predicted_classes(predictions)
        candidates = Candidates("SoTTA", self.memory["images"], inputs, confident)
        classes = list(self.memory["classes"])
        offset = len(classes)
        positions = list(range(offset))  # of the remembered images, in the memory followed by the batch
        for place, image in enumerate(chosen):
            while len(positions) >= self.capacity:
                replaced = self._choose_replaced(classes, predicted[image])
                del positions[replaced], classes[replaced]
            positions.append(offset + place)
            classes.append(predicted[image])
        self.memory["images"], self.memory["classes"] = candidates.at(positions), classes

    def _choose_replaced(self, classes: list[int], incoming: int) -> int:
        """Return the position of a random image of the incoming class if no class is larger, else of a largest one."""
        counts = Counter(classes)
        largest = [c for c, n in sorted(counts.items()) if n == max(counts.values())]
        chosen = incoming if incoming in largest else largest[self._random_index(len(largest))]
        positions = [i for i, c in enumerate(classes) if c == chosen]
        return positions[self._random_index(len(positions))]

    def _random_index(self, length: int) -> int:
        return int(torch.randint(length, (), generator=self.generator))

    def check_memory(self, memory: dict[str, Any], values: Values) -> None:
        """Require a class for each image, and no more images than the capacity."""
        check_remembered(memory, self.capacity)
