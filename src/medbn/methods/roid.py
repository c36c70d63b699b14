"""ROID: universal test-time adaptation (Marsden, Döbler and Yang, WACV 2024)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._errors import unknown_name
from ._augment import Augment, Augmentation, change_images, draw_seed
from ._call import Inputs, Predictions, extract_logits, replace_tensor
from ._check_state import Values, check_count, check_tensor
from ._method import Run
from ._registry import register
from .learner import Learner

LARGEST_PROBABILITY, SMALLEST_RATIO = 0.99, 1e-5
"""Probabilities are clipped before their likelihood ratio is taken, and the ratio is kept from 0, as in ROID's code."""


@register("roid")
class ROID(Learner):
    """Minimises a weighted likelihood ratio and inconsistency, stays near the source model, and corrects for the prior.

    - *Loss*: the soft likelihood ratio −Σ p_c log(p_c / Σ_{j≠c} p_j), which has a gradient also where predictions are
      certain, plus the symmetric cross-entropy −½ Σ (p log q + q log p) with the predictions q of augmented images.
    - *Weights*: exp(d · c / τ). d is the diversity 1 − cos(p, m), where m is a moving average of the mean prediction,
      and c the certainty, the negative entropy; both are scaled to [0, 1] over the batch. Samples whose d is below the
      mean of the batch are left out. Weights are constants in the gradient.
    - *Weight ensembling*: after the step, θ ← α θ + (1 − α) θ₀ with the source parameters θ₀.
    - *Prior correction*: predictions are multiplied by a smoothed class prior (π + γ) / (1 + γ C), where π is their
      mean over the batch and γ = max(1/B, 1/C) / max π.

    Args:
        model: the model to adapt.
        ensembling: α; 0.99 in ROID's paper.
        average: the weight of the past in m; 0.9 in ROID's code. m begins with equal probabilities.
        temperature: τ; 1/3 in ROID's paper.
        consistency: add the cross-entropy with augmented images, as in ROID's paper.
        prior: what is multiplied by the prior: ``"probabilities"``, as the paper says, ``"logits"``, as the code does,
            or ``"none"``. Without it the output is the model's; with it, the logarithm of the corrected probabilities
            or the corrected logits.
        augment: a function of images ``(B, C, H, W)`` and a ``torch.Generator``. None for those of ROID's code, which
            are CoTTA's without blur and noise and with reflected borders; where outputs are dense, without those that
            move pixels.
        options: those of Learner. ROID's code learns on ImageNet with Nesterov's momentum and a rate of 0.00025.

    As in ROID's code, the losses of the samples that are left in are summed and divided by the size of the batch, and
    the augmented images are those samples alone, normalised with their own statistics.
    """

    presets: ClassVar[dict[str, dict[str, Any]]] = {"imagenet": {"optimizer": "nesterov", "lr": 2.5e-4}}
    surrogate_from_policies: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        *,
        ensembling: float = 0.99,
        average: float = 0.9,
        temperature: float = 1 / 3,
        consistency: bool = True,
        prior: str = "probabilities",
        augment: Augment | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, **options)
        for name, value in (("ensembling", ensembling), ("average", average)):
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"{name} is a number from 0 to 1, got {value!r}.")
        if temperature <= 0:
            raise ValueError(f"temperature is a number above 0, got {temperature!r}.")
        if prior not in ("probabilities", "logits", "none"):
            raise unknown_name("prior", prior, ("probabilities", "logits", "none"))
        if augment is not None and not callable(augment):
            raise TypeError(f"augment is a function of images and a generator, got {augment!r}.")
        self.ensembling = ensembling
        self.average = average
        self.temperature = temperature
        self.consistency = consistency
        self.prior = prior
        self.augment = augment
        self.memory |= {"prediction": None, "seed": draw_seed(self.generator)}

    def step(self, inputs: Inputs, predictions: Predictions) -> bool:
        """Take one step, return a part of the way to the source model, and update the average prediction."""
        gradients = self._gradients(inputs, predictions)
        if gradients is None or not self.take_step(gradients):
            return False
        after = self._ensemble(dict(self.learned), self.source_state["learned"])
        with torch.no_grad():
            for name, parameter in self.learned.items():
                parameter.copy_(after[name])
        new = predictions.probabilities()[predictions.usable].mean(dim=0)
        self.memory["prediction"] = self.average * self._past(predictions, self.memory) + (1 - self.average) * new
        self.memory["seed"] = draw_seed(self.generator)
        return True

    def _gradients(self, inputs: Inputs, predictions: Predictions) -> list[Tensor] | None:
        """Return the gradients of the loss; None if no sample is left in.

        Each pass is differentiated with its own images left out, for activation checkpointing runs it again then.
        """
        weights = self._weights(predictions, self.memory)
        if self.nothing_to_learn(weights):
            return None
        if not self.consistency:
            return self.gradients_of(self._loss(predictions, None, weights))
        changed = self._augment_images(inputs, predictions, weights, self.memory)
        with self.ignore_padding(changed):
            other = self.predict_again(changed)
            first, second = (each.logits.detach().requires_grad_() for each in (predictions, other))
            loss = self._loss(predictions._replace(logits=first), other._replace(logits=second), weights)
            d_first, d_second = torch.autograd.grad(loss, (first, second))
            through_augmented = self.gradients_of((other.logits * d_second).sum())
        gradients = self.gradients_of((predictions.logits * d_first).sum())
        return [g + h for g, h in zip(gradients, through_augmented, strict=True)]

    def batch_loss(
        self, inputs: Inputs, predictions: Predictions, memory: dict[str, Any], learned: dict[str, Tensor], run: Run
    ) -> Tensor | None:
        """Return the loss, for ``unroll``; None if no sample is left in."""
        weights = self._weights(predictions, memory)
        if self.nothing_to_learn(weights):
            return None
        if not self.consistency:
            return self._loss(predictions, None, weights)
        changed = self._augment_images(inputs, predictions, weights, memory)
        with self.ignore_padding(changed):
            other = self.predictions_of(changed, run(changed, None))
        return self._loss(predictions, other, weights)

    def _loss(self, predictions: Predictions, other: Predictions | None, weights: Tensor) -> Tensor:
        """Return the weighted likelihood ratio, plus the symmetric cross-entropy with other predictions if given."""
        p = predictions.logits.softmax(dim=1).clamp(max=LARGEST_PROBABILITY)
        losses = -(p * (p / (1.0 - p) + SMALLEST_RATIO).log()).sum(dim=1)
        if other is not None:
            log_p, log_q = predictions.logits.log_softmax(dim=1), other.logits.log_softmax(dim=1)
            symmetric = -(log_p.exp() * log_q + log_q.exp() * log_p).sum(dim=1) / 2
            losses = losses + torch.where(other.usable, symmetric, 0.0)
        return torch.where(weights > 0, weights * losses, 0.0).sum() / self._count(predictions)

    def _count(self, predictions: Predictions) -> Tensor | int:
        """Return by how many rows losses are divided."""
        return predictions.usable.sum() if self.influence is None else len(predictions.usable)

    def _augment_images(
        self, inputs: Inputs, predictions: Predictions, weights: Tensor, memory: dict[str, Any]
    ) -> Inputs:
        """Return the images that are left in, augmented; the others count as padding."""
        inputs = inputs.keep_only((weights > 0).view(len(predictions.images), -1).any(dim=1))
        generator = torch.Generator().manual_seed(memory["seed"])
        moves = not predictions.dense
        augment = self.augment or Augmentation(padding="reflection", blur=0.0, noise=0.0, moves=moves)
        return change_images(inputs, lambda x: augment(x, generator), "ROID")

    def _past(self, predictions: Predictions, memory: dict[str, Any]) -> Tensor:
        """Return the average prediction so far."""
        past: Tensor | None = memory["prediction"]
        if past is None:
            return torch.full_like(predictions.logits[0].detach(), 1.0 / predictions.classes)
        if len(past) != predictions.classes:
            raise ValueError(
                f"the average prediction in memory has {len(past)} classes, and the model {predictions.classes}; the"
                " state was saved with another model. reset() it."
            )
        return past

    def _diversity(self, predictions: Predictions, memory: dict[str, Any]) -> Tensor:
        past = self._past(predictions, memory).unsqueeze(0)
        return _scale(1.0 - F.cosine_similarity(past, predictions.probabilities(), dim=1), predictions.usable)

    def _weights(self, predictions: Predictions, memory: dict[str, Any]) -> Tensor:
        """Return each sample's weight; 0 for those that are left out."""
        certainty = _scale(-predictions.entropy().detach(), predictions.usable)
        weights = torch.exp(self._diversity(predictions, memory) * certainty / self.temperature)
        return torch.where(self.filters(predictions, memory)["diversity"], weights, 0.0)

    def filters(self, predictions: Predictions, memory: dict[str, Any]) -> dict[str, Tensor]:
        """Return a mask of the samples that are diverse enough."""
        diversity, usable = self._diversity(predictions, memory), predictions.usable
        mean = torch.where(usable, diversity, 0.0).sum() / usable.sum().clamp(min=1)
        return {"diversity": usable & (diversity >= mean)}

    def _ensemble(self, learned: dict[str, Tensor], source: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: self.ensembling * p + (1.0 - self.ensembling) * source[name] for name, p in learned.items()}

    def unroll(self, run: Run, state: dict[str, Any], inputs: Inputs) -> dict[str, Tensor]:
        """Return the parameters after one step and the return towards the source model."""
        return self._ensemble(super().unroll(run, state, inputs), self.source_state["learned"])

    def correct(self, output: Any, inputs: Inputs, memory: dict[str, Any], run: Run) -> Any:
        """Return the output with predictions that the class prior of the batch has corrected."""
        if self.prior == "none":
            return output
        logits = extract_logits(output, self.logits, inputs.size)
        predictions = self.predictions_of(inputs, output)
        rows, usable = predictions.logits, predictions.usable.unsqueeze(1)
        count = predictions.usable.sum().clamp(min=1)
        prior = torch.where(usable, rows.softmax(dim=1), 0.0).sum(dim=0) / count
        largest = prior.max().clamp(min=torch.finfo(prior.dtype).tiny)
        smoothing = torch.maximum(1.0 / count, torch.full_like(largest, 1.0 / predictions.classes)) / largest
        prior = (prior + smoothing) / (1.0 + smoothing * predictions.classes)
        corrected = rows * prior if self.prior == "logits" else (rows.log_softmax(dim=1) + prior.log()).log_softmax(1)
        return replace_tensor(output, logits, inputs.own(predictions.as_logits(corrected, inputs.gather(logits))))

    def changes_output(self) -> bool:
        """Return whether predictions are corrected for the prior of their batch."""
        return self.prior != "none"

    def surrogate_key(self, state: dict[str, Any], images: int) -> Hashable:
        """Return a key with what is multiplied by the prior."""
        key = super().surrogate_key(state, images)
        return key if self.prior == "none" else (key, type(self), self.prior)

    def check_memory(self, memory: dict[str, Any], values: Values) -> None:
        """Require a seed, and an average of probabilities or None before the first."""
        check_count("the seed of the augmentations", memory["seed"])
        prediction, own = memory["prediction"], self.memory["prediction"]
        if prediction is not None:
            check_tensor(values, "the average prediction", prediction, None if own is None else own.shape, 0.0)
            if prediction.dim() != 1:
                raise ValueError(f"the average prediction must have one dimension, got {prediction.dim()}.")


def _scale(values: Tensor, usable: Tensor) -> Tensor:
    """Return values scaled to [0, 1] over the usable rows; 0 where all are equal."""
    low = torch.where(usable, values, torch.inf).min()
    high = torch.where(usable, values, -torch.inf).max()
    scaled = (values - low) / (high - low).clamp(min=torch.finfo(values.dtype).tiny)
    return torch.where(usable, scaled, 0.0)
