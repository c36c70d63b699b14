"""CoTTA: continual test-time domain adaptation (Wang et al., CVPR 2022)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .._errors import unknown_name
from ._augment import Augment, Augmentation, change_images, draw_seed
from ._call import Inputs, Predictions, extract_logits, mean_over, replace_tensor
from ._check_state import Values, check_count
from ._method import Run
from ._registry import register
from ._surrogate import make_hashable
from ._teacher import Teacher, average_parameters
from ._unroll import optimizer_step


@register("cotta")
class CoTTA(Teacher):
    """Learns all parameters from a teacher: a moving average of them that predicts, and that adapts slowly.

    The student's loss is the cross-entropy −Σ y′ log ŷ with the teacher's predictions y′ (eq. 5). Where the *source*
    model is confident, the mean of its largest probabilities over the batch being at least ``threshold``, y′ is the
    teacher's prediction; elsewhere it is the mean of its predictions under random augmentations (eq. 3 and 4). Then the
    teacher follows the student, θ′ ← α θ′ + (1 − α) θ (eq. 2), and each of the student's parameters returns to its
    source value with a probability of ``restored`` (eq. 8). The output is the teacher's prediction before that.

    Args:
        model: the model to adapt. Its parameters become the teacher's.
        average: α; 0.999 in CoTTA's paper.
        augmentations: how many of them are averaged; 32 in CoTTA's paper.
        threshold: the source model's confidence from which on nothing is augmented; 0.92 on CIFAR-10, 0.72 on
            CIFAR-100, 0.1 on ImageNet, as in CoTTA's code. The paper takes the 5% quantile of the confidence on source
            images.
        restored: the probability of a return to the source value; 0.01 on CIFAR, 0.001 on ImageNet, as in CoTTA's code.
        average_of: what is averaged over augmentations: ``"probabilities"``, as the paper says, or ``"logits"``, as the
            code does.
        symmetric: add the cross-entropy with the two exchanged, each with a weight of one half: CoTTA's code does on
            ImageNet.
        augmented_output: return the averaged prediction where the batch is augmented, as CoTTA's code does. Every pass
            of a surrogate is then one per augmentation, with the random numbers that the batch will have.
        augment: a function of images ``(B, C, H, W)`` and a ``torch.Generator``. None for the augmentations of CoTTA's
            code, which are for images in [0, 1]; where outputs are dense, without those that move pixels.
        options: those of Learner. ``frozen`` names modules. CoTTA's code learns on ImageNet with Nesterov's momentum
            and a rate of 0.01.

    Where nothing is augmented, teacher and student begin alike, and the gradient is rounding alone. Adam scales it up,
    here as in CoTTA's code, so parameters then change at random.

    A state has the parameters three times, and the optimiser's moments of all of them.
    """

    learns_everything: ClassVar[bool] = True
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "cifar100": {"threshold": 0.72},
        "imagenet": {"threshold": 0.1, "restored": 0.001, "optimizer": "nesterov", "lr": 0.01},
    }
    surrogate_from_policies: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        *,
        average: float = 0.999,
        augmentations: int = 32,
        threshold: float = 0.92,
        restored: float = 0.01,
        average_of: str = "probabilities",
        symmetric: bool = False,
        augmented_output: bool = False,
        augment: Augment | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, **options)
        if augmentations < 1:
            raise ValueError(f"augmentations is a whole number of at least 1, got {augmentations!r}.")
        if augment is not None and not callable(augment):
            raise TypeError(f"augment is a function of images and a generator, got {augment!r}.")
        for name, value in (("average", average), ("restored", restored)):
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"{name} is a number from 0 to 1, got {value!r}.")
        if average_of not in ("probabilities", "logits"):
            raise unknown_name("average_of", average_of, ("probabilities", "logits"))
        self.average = average
        self.augmentations = augmentations
        self.threshold = threshold
        self.restored = restored
        self.average_of = average_of
        self.symmetric = symmetric
        self.augmented_output = augmented_output
        self.augment = augment
        self.memory["seed"] = draw_seed(self.generator)

    def step(self, inputs: Inputs, predictions: Predictions) -> bool:
        """Let the student take one step, the teacher follow, and some parameters return to their source values."""
        inputs = inputs.keep_only(predictions.images)  # not even zero times NaN may enter a gradient of a convolution
        with self.ignore_padding(inputs):
            with torch.no_grad():
                labels = self._pseudo_labels(inputs, predictions, self.memory, self.run_with)
            with self.student():
                loss = self._cross_entropy(self.predict_again(inputs), labels)
                taken = self.take_step(self.gradients_of(loss))
        if not taken:
            return False
        self.follow_student(self.average)
        for name, value in self.memory["student"].items():
            chosen = torch.rand(value.shape, generator=self.generator).to(value.device) < self.restored
            value.copy_(torch.where(chosen, self.source_state["learned"][name], value))
        self.memory["seed"] = draw_seed(self.generator)
        return True

    def _cross_entropy(self, student: Predictions, labels: Predictions) -> Tensor:
        """Return the mean over usable rows of the cross-entropy with the teacher's predictions."""
        log_p, log_q = student.logits.log_softmax(dim=1), labels.logits.detach().log_softmax(dim=1)
        values = -(log_q.exp() * log_p).sum(dim=1)
        if self.symmetric:
            values = (values - (log_p.exp() * log_q).sum(dim=1)) / 2
        return self.mean_of(values, student.usable & labels.usable)

    def _pseudo_labels(self, inputs: Inputs, predictions: Predictions, memory: dict[str, Any], run: Run) -> Predictions:
        """Return the teacher's predictions, averaged over augmentations where the source model is not confident."""
        with torch.no_grad():
            source = self.predictions_of(inputs, run(inputs, self.source_state["learned"]))
            confidence = mean_over(source.probabilities().amax(dim=1), predictions.usable & source.usable)
        if bool(confidence >= self.threshold):
            return predictions
        augment = Augmentation(moves=not predictions.dense) if self.augment is None else self.augment
        generator = torch.Generator().manual_seed(memory["seed"])
        total, usable, images = torch.zeros_like(predictions.logits), predictions.usable, predictions.images
        for _ in range(self.augmentations):
            changed = change_images(inputs, lambda x: augment(x, generator), "CoTTA")
            each = self.predictions_of(inputs, run(changed, None))
            values = each.logits if self.average_of == "logits" else each.logits.softmax(dim=1)
            total, usable, images = total + values, usable & each.usable, images & each.images
        mean = total / self.augmentations
        if self.average_of == "probabilities":
            mean = mean.clamp(min=torch.finfo(mean.dtype).tiny).log()
        return Predictions(mean, usable, images)

    def correct(self, output: Any, inputs: Inputs, memory: dict[str, Any], run: Run) -> Any:
        """Return the teacher's output, or the mean over augmentations if ``augmented_output`` says so."""
        if not self.augmented_output:
            return output
        logits = extract_logits(output, self.logits, inputs.size)
        predictions = self.predictions_of(inputs, output)
        labels = self._pseudo_labels(inputs, predictions, memory, run)
        if labels is predictions:
            return output
        corrected = labels.as_logits(labels.logits, inputs.gather(logits))
        return replace_tensor(output, logits, inputs.own(corrected))

    def changes_output(self) -> bool:
        """Return whether outputs are averaged over augmentations."""
        return self.augmented_output

    def unroll(self, run: Run, state: dict[str, Any], inputs: Inputs) -> dict[str, Tensor]:
        """Return the teacher after a step of the student; the pseudo-labels are constants."""
        if self.influence is not None:
            raise ValueError("CoTTA cannot be unrolled where influence is bounded; use unroll=0.")
        memory = state["memory"]
        with torch.no_grad():
            teacher = self.predictions_of(inputs, run(inputs, state["learned"]))
            labels = self._pseudo_labels(inputs, teacher, memory, run)
        inputs = inputs.keep_only(teacher.images)
        with torch.enable_grad(), self.ignore_padding(inputs):
            student = {name: p.detach().requires_grad_() for name, p in memory["student"].items()}
            loss = self._cross_entropy(self.predictions_of(inputs, run(inputs, student)), labels)
            gradients = torch.autograd.grad(loss, list(student.values()), create_graph=True, allow_unused=True)
        after = optimizer_step(self.optimizer, {**state, "learned": memory["student"]}, gradients)
        return average_parameters(state["learned"], {**memory["student"], **after}, self.average)

    def surrogate_key(self, state: dict[str, Any], images: int) -> Hashable:
        """Return a key with the options and random numbers of the augmentations, if they change the output."""
        key = super().surrogate_key(state, images)
        if not self.augmented_output:
            return key
        return (key, make_hashable(self.given_options), make_hashable(state["memory"]["seed"]))

    def check_memory(self, memory: dict[str, Any], values: Values) -> None:
        """Require a student and a seed."""
        super().check_memory(memory, values)
        check_count("the seed of the augmentations", memory["seed"])
