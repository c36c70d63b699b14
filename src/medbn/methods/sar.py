"""SAR: towards stable test-time adaptation in dynamic wild world (Niu et al., ICLR 2023), with BatchNorm."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ._call import Inputs, Predictions, mean_over
from ._check_state import Values
from ._entropy import EntropyLearner
from ._method import Run
from ._registry import register
from ._unroll import optimizer_step


@register("sar")
class SAR(EntropyLearner):
    """Minimises the worst entropy within ρ of the parameters over reliable samples; resets the model on collapse.

    A sample is reliable if its entropy is below E₀. SAM approximates the worst parameters by θ + ρ·g/‖g‖, where g is
    the gradient at θ.

    Args:
        model: the model to adapt.
        margin: E₀ as a fraction of ln(classes); 0.4 in SAR's paper and the MedBN paper.
        rho: ρ of SAM; 0.05 in SAR's paper.
        recovery: the model is reset when the moving average of the loss falls below this. 0.2 on ImageNet, as in SAR's
            paper. 0 on CIFAR-10 and CIFAR-100, which is never: the entropy of reliable samples is 0.04 to 0.2 there
            (CIFAR-10, ResNet-26), so with 0.2 the model is reset on nearly every batch, and SAR predicts as TeBN does.
            The MedBN authors' code computes the average and never resets.
        average: the weight of the past in that average; 0.9 in SAR's paper.
        options: those of EntropyLearner, ``loss="come"`` among them; the affine parameters of the last stage are not
            learned, as in SAR's paper.

    A sample is learned from if it is reliable both at θ and at θ + ρ·g/‖g‖. Where there is no such sample, no step is
    taken. A reset restores the optimiser's moments too, as in SAR's code. That code keeps the collapsed average after a
    reset, which then repeats on every batch; we start a new one.
    """

    version: ClassVar[int] = 2  # before, ``recovery`` was 0.2 everywhere
    presets: ClassVar[dict[str, dict[str, Any]]] = {"imagenet": {"recovery": 0.2}}
    freezes_last_stage: ClassVar[bool] = True
    surrogate_from_policies: ClassVar[bool] = True
    replays: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        *,
        margin: float = 0.4,
        rho: float = 0.05,
        recovery: float = 0.0,
        average: float = 0.9,
        **options: Any,
    ) -> None:
        super().__init__(model, **options)
        self.margin = margin
        self.rho = rho
        self.recovery = recovery
        self.average = average
        self.memory["loss"] = None

    def step(self, inputs: Inputs, predictions: Predictions) -> bool:
        """Take one SAM step on the reliable samples; reset the model if the loss has collapsed."""
        reliable = self._reliable(predictions)
        if self.nothing_to_learn(reliable):
            return False
        gradients = self.gradients_of(self.mean_of(self.entropy_of(predictions), reliable))
        with self.sam_ascent(gradients, self.rho):
            predictions = self.predict_again(inputs)
            reliable = reliable & self._reliable(predictions)
            if self.nothing_to_learn(reliable):
                return False
            entropy = self.entropy_of(predictions)
            gradients = self.gradients_of(self.mean_of(entropy, reliable))
        if not self.take_step(gradients):
            return False
        if not bool(reliable.any()):
            return True
        past, new = self.memory["loss"], mean_over(entropy.detach(), reliable).item()
        self.memory["loss"] = new if past is None else self.average * past + (1 - self.average) * new
        if self.memory["loss"] < self.recovery:
            self.reset()
        return True

    def loss(self, predictions: Predictions, memory: dict[str, Any], learned: dict[str, Tensor]) -> Tensor | None:
        """Return the mean entropy of the reliable rows; None if there are none."""
        reliable = self._reliable(predictions)
        return None if self.nothing_to_learn(reliable) else self.mean_of(self.entropy_of(predictions), reliable)

    def unroll(self, run: Run, state: dict[str, Any], inputs: Inputs) -> dict[str, Tensor]:
        """Return the parameters after one SAM step; its perturbation is a constant, and a reset is left out."""
        with torch.enable_grad():
            learned = self.leaf_parameters(state)
            with self.learning_pass():
                predictions = self.predictions_of(inputs, run(inputs, learned))
            reliable = self._reliable(predictions)
            if self.nothing_to_learn(reliable):
                return {}
            loss = self.mean_of(self.entropy_of(predictions), reliable)
            if self.influence is None:
                gradients = self.plain_gradients_of(loss, learned.values())
            else:
                gradients = [g.detach() for g in self.bounded_gradients(loss, learned, state["memory"])]
            perturbed = {
                name: (p + move).detach().requires_grad_()
                for (name, p), move in zip(learned.items(), self.perturbation(gradients, self.rho), strict=True)
            }
            with self.learning_pass():
                predictions = self.predictions_of(inputs, run(inputs, perturbed))
            reliable = reliable & self._reliable(predictions)
            if self.nothing_to_learn(reliable):
                return {}
            loss = self.mean_of(self.entropy_of(predictions), reliable)
            step = self.unrolled_gradients(loss, perturbed, state["memory"])
            return optimizer_step(self.optimizer, state, step)

    def filters(self, predictions: Predictions, memory: dict[str, Any]) -> dict[str, Tensor]:
        """Return a mask of the samples that are reliable, ``"entropy"``."""
        return {"entropy": self._reliable(predictions)}

    def _reliable(self, predictions: Predictions) -> Tensor:
        """Return a mask of the reliable rows."""
        return predictions.usable & (
            self.entropy_of(predictions).detach() < self.margin * math.log(predictions.classes)
        )

    def check_memory(self, memory: dict[str, Any], values: Values) -> None:
        """Require an average loss, or None before the first."""
        loss = memory["loss"]
        if loss is not None and not (
            isinstance(loss, int | float) and not isinstance(loss, bool) and 0 <= loss < math.inf
        ):
            raise ValueError(f"the average loss must be a number from 0 on, got {loss!r}.")
