"""RoTTA: robust test-time adaptation in dynamic scenarios (Yuan et al., CVPR 2023)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .. import policies
from ._augment import Augment, Augmentation, change_images
from ._bounded_influence import WITHOUT_BATCH
from ._call import Inputs, Predictions
from ._check_state import Values, check_count, check_tensor
from ._image_memory import check_remembered, offer_images, predicted_classes
from ._method import Run
from ._registry import register
from ._teacher import Teacher


@register("rotta")
class RoTTA(Teacher):
    """Learns from a memory of timely and certain images, balanced over the classes, with a teacher and slow averages.

    *Robust normalisation*: all passes are normalised with a moving average of statistics, μ ← (1 − α) μ + α μ_batch,
    into which only the memory's enter. *Memory*: at most N / C images of a class. Where there is no room, the image
    with the highest score λ_t / (1 + exp(−A/N)) + λ_u · H / ln C is replaced, if the new one's is lower: of its own
    class if that is full, else of the largest classes. A is the image's age in images, H the entropy of its prediction
    when it came. *Learning*: after every N images the student takes a step on the whole memory. Its loss is the mean of
    E(A) · (−Σ p_T log p_S), where the student sees augmented images, the teacher the images as they are, and
    E(A) = exp(−A/N) / (1 + exp(−A/N)). Then θ_T ← (1 − ν) θ_T + ν θ_S. The output is the teacher's.

    Args:
        model: the model to adapt. Its parameters become the teacher's.
        capacity: N, the images in memory; 64 in RoTTA's paper.
        frequency: how many images come between two steps; 64 in RoTTA's paper.
        momentum: α, the weight of the memory's statistics in the average; 0.05 in RoTTA's paper.
        average: 1 − ν; ν is 0.001 in RoTTA's paper.
        timeliness: λ_t; 1 in RoTTA's paper.
        certainty: λ_u; 1 in RoTTA's paper.
        augment: a function of images ``(B, C, H, W)`` and a ``torch.Generator``. None for the augmentations of CoTTA's
            code, which are RoTTA's; where outputs are dense, without those that move pixels.
        options: those of Learner.

    Teacher and student have an average of statistics each, as in RoTTA's code. A batch is predicted, and its images
    compared with the memory, before any of it is learned from: the steps that fall into a batch follow its prediction.
    An attacker cannot change that with images of the same batch; the surrogate is this pass, in which images do not
    depend on each other. She can place images in the memory for later batches.
    """

    policy = WITHOUT_BATCH
    keeps_average: ClassVar[bool] = True
    image_entries: ClassVar[tuple[str, ...]] = (*Teacher.image_entries, "images", "classes", "entropies", "ages")
    surrogate_from_policies: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        *,
        capacity: int = 64,
        frequency: int = 64,
        momentum: float = 0.05,
        average: float = 0.999,
        timeliness: float = 1.0,
        certainty: float = 1.0,
        augment: Augment | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, **options)
        for name, value in (("capacity", capacity), ("frequency", frequency)):
            if value < 1:
                raise ValueError(f"{name} is a number of images, at least 1; got {value}.")
        if not 0.0 <= average <= 1.0:
            raise ValueError(f"average is a number from 0 to 1, got {average!r}.")
        if augment is not None and not callable(augment):
            raise TypeError(f"augment is a function of images and a generator, got {augment!r}.")
        self._average = policies.ema(momentum)
        self.capacity = capacity
        self.frequency = frequency
        self.average = average
        self.timeliness = timeliness
        self.certainty = certainty
        self.augment = augment
        self.memory |= {"images": {}, "classes": [], "entropies": [], "ages": [], "seen": 0}

    def prepare(self) -> None:
        """Start the student, with the same statistics as the teacher."""
        super().prepare()
        self.memory["averages"] = {name: [s.clone() for s in self._statistics(name)] for name in self.layers}

    def commits_prediction(self) -> bool:
        """Return False: the memory's statistics enter the average, the batch's do not."""
        return False

    def update(self, inputs: Inputs, output: Any) -> bool:
        """Offer the images to the memory one by one, and learn from it after every ``frequency`` of them."""
        predictions = self.predictions_of(inputs, output)
        labels = predicted_classes(predictions)
        entropies = predictions.entropy().detach().view(len(labels), -1).mean(dim=1).tolist()

        def offer(positions: list[int], new: int, image: int) -> None:
            self._offer(positions, new, labels[image], entropies[image], predictions.classes)
            self.memory["ages"] = [age + 1 for age in self.memory["ages"]]

        def learn(remembered: Inputs) -> bool:
            steps = [self._learn_from(remembered) for _ in range(self.steps)]
            return any(steps)

        return offer_images("RoTTA", self.memory, inputs, predictions, self.frequency, offer, learn)

    def _offer(self, positions: list[int], new: int, label: int, entropy: float, classes: int) -> None:
        """Remember an image where there is room, or in place of one with a higher score."""
        memory = self.memory
        counts = [memory["classes"].count(c) for c in range(classes)]
        full = counts[label] >= self.capacity / classes
        if full or len(positions) >= self.capacity:
            replaceable = {label} if full else {c for c, count in enumerate(counts) if count == max(counts)}
            others = sorted(i for i, c in enumerate(memory["classes"]) if c in replaceable)
            scores = {i: self._score(memory["ages"][i], memory["entropies"][i], classes) for i in others}
            worst = max(others, key=lambda i: (scores[i], memory["classes"][i], i)) if others else None
            if worst is not None:
                if scores[worst] <= self._score(0, entropy, classes):
                    return
                for entries in (positions, memory["classes"], memory["entropies"], memory["ages"]):
                    del entries[worst]
        positions.append(new)
        memory["classes"].append(label)
        memory["entropies"].append(entropy)
        memory["ages"].append(0)

    def _score(self, age: int, entropy: float, classes: int) -> float:
        """Return λ_t / (1 + exp(−A/N)) + λ_u · H / ln C."""
        timeliness = self.timeliness / (1.0 + math.exp(-age / self.capacity))
        return timeliness + self.certainty * entropy / math.log(max(classes, 2))

    def _learn_from(self, inputs: Inputs) -> bool:
        """Let the student take one step on the memory, and the teacher follow."""
        with self.ignore_padding(inputs), self.use_policy(self._average):
            with torch.no_grad(), self.observe_statistics() as gather:
                teacher = self.predictions_of(inputs, self.run_model(inputs))
            commit_teacher = gather()
            augment = Augmentation(moves=not teacher.dense) if self.augment is None else self.augment
            changed = change_images(inputs, lambda x: augment(x, self.generator), "RoTTA")
            with self.student():
                with self.observe_statistics() as gather:
                    student = self.predict_again(changed)
                taken = self.take_step(self.gradients_of(self._loss(teacher, student)))
                if taken:
                    gather()(self._average)
        if taken:
            commit_teacher(self._average)
            self.follow_student(self.average)
        return taken

    def _loss(self, teacher: Predictions, student: Predictions) -> Tensor:
        """Return the mean cross-entropy with the teacher's predictions, weighted by how recent images are."""
        ages = torch.tensor(self.memory["ages"], dtype=torch.float64) / self.capacity
        weights = torch.sigmoid(-ages).to(student.logits)
        weights = weights.repeat_interleave(len(student.usable) // len(weights))
        values = -(teacher.probabilities() * student.logits.log_softmax(dim=1)).sum(dim=1)
        return self.mean_of(weights * values, teacher.usable & student.usable)

    @contextmanager
    def student(self) -> Iterator[None]:
        """Put the student into the model inside the context, with its own averages of statistics."""
        teacher = {name: self._statistics(name) for name in self.layers}
        self._set_statistics(self.memory["averages"])
        with super().student():
            yield
        self.memory["averages"] = {name: list(self._statistics(name)) for name in self.layers}
        self._set_statistics(teacher)

    def _statistics(self, name: str) -> tuple[Tensor, Tensor]:
        """Return the moving average of a layer."""
        mean, var = self.layers[name].ema_mean, self.layers[name].ema_var
        assert mean is not None
        assert var is not None
        return mean, var

    def _set_statistics(self, averages: dict[str, Any]) -> None:
        for name, (mean, var) in averages.items():
            self.layers[name].ema_mean, self.layers[name].ema_var = mean, var

    def unroll(self, run: Run, state: dict[str, Any], inputs: Inputs) -> dict[str, Tensor]:
        """Raise: which images enter the memory is no smooth function of the batch."""
        raise ValueError(
            "RoTTA cannot be unrolled: it learns from its memory, not from the batch at hand; use unroll=0."
        )

    def check_memory(self, memory: dict[str, Any], values: Values) -> None:
        """Require a class, an entropy and an age for each image, and the student's averages."""
        super().check_memory(memory, values)
        check_remembered(memory, self.capacity)
        check_count("the number of images seen", memory["seen"])
        for name in ("entropies", "ages"):
            if not isinstance(memory[name], list) or len(memory[name]) != len(memory["classes"]):
                raise ValueError(f"{name} must be a list with a number for each image in memory.")
        for age in memory["ages"]:
            check_count("the age of an image in memory", age)
        for entropy in memory["entropies"]:
            if not isinstance(entropy, float) or not 0 <= entropy < math.inf:
                raise ValueError(f"the entropy of an image in memory must be a number from 0 on, got {entropy!r}.")
        averages = memory["averages"]
        if not isinstance(averages, dict) or averages.keys() != self.layers.keys():
            raise ValueError("the student's averages are not of the layers of this model.")
        for name, pair in averages.items():
            if not isinstance(pair, list) or len(pair) != 2:
                raise ValueError(f"the student's average of {name} must be a mean and a variance.")
            for value, least in zip(pair, (None, 0.0), strict=True):
                check_tensor(
                    values, f"the student's average of {name}", value, (self.layers[name].num_features,), least
                )
