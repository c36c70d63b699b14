"""SAR: towards stable test-time adaptation in dynamic wild world (Niu et al., ICLR 2023), with BatchNorm."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ._call import Inputs, Predictions, mean_over
from ._unroll import stepped
from .base import Learner


class SAR(Learner):
    """Minimises the worst entropy within ρ of the parameters, over reliable samples; recovers the model on collapse.

    Reliable is an entropy below E₀. The worst is SAM's: at θ + ρ·g/‖g‖, where g is the gradient at θ.

    Args:
        model: the model to adapt.
        margin: E₀ as a fraction of ln(classes); 0.4 in SAR's paper and the MedBN paper.
        rho: how far uphill SAM looks; 0.05 in SAR's paper.
        recovery: the model is reset when the moving average of the loss falls below this; 0.2 in SAR's paper.
        average: the weight of the past in that average; 0.9 in SAR's paper.
        options: those of Learner; the affine parameters of the last stage are not learned, as in SAR's paper.

    The second filter, uphill, is nested inside the first. Where a filter selects nothing, no step is taken. SAR's code
    keeps the collapsed average after a recovery, which then repeats on every batch; we start a new one.
    """

    keeps_last_stage: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        *,
        margin: float = 0.4,
        rho: float = 0.05,
        recovery: float = 0.2,
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
        """Filter, climb, filter again, descend; recover if the loss has collapsed."""
        reliable = self._reliable(predictions)
        if not bool(reliable.any()):
            return False
        uphill = self.gradients(mean_over(predictions.entropy(), reliable))
        with self.ascended(uphill, self.rho):
            predictions = self.look(inputs)
            reliable = reliable & self._reliable(predictions)
            if not bool(reliable.any()):
                return False
            loss = mean_over(predictions.entropy(), reliable)
            gradients = self.gradients(loss)
        if not self.descend(gradients):
            return False
        past, new = self.memory["loss"], loss.item()
        self.memory["loss"] = new if past is None else self.average * past + (1 - self.average) * new
        if self.memory["loss"] < self.recovery:
            self.reset()
        return True

    def loss(self, predictions: Predictions, memory: dict[str, Any], learned: dict[str, Tensor]) -> Tensor | None:
        """The mean entropy of the reliable rows."""
        reliable = self._reliable(predictions)
        return mean_over(predictions.entropy(), reliable) if bool(reliable.any()) else None

    def unrolled(
        self, logits: Callable[[dict[str, Tensor]], Tensor], state: dict[str, Any], inputs: Inputs
    ) -> dict[str, Tensor]:
        """One sharpness-aware step; where SAM climbs to is a constant, and a recovery is not foreseen."""
        with torch.enable_grad():
            learned = {name: p.detach().requires_grad_() for name, p in state["learned"].items()}
            predictions = Predictions.of(logits(learned), inputs.valid)
            reliable = self._reliable(predictions)
            if not bool(reliable.any()):
                return {}
            loss = mean_over(predictions.entropy(), reliable)
            found = torch.autograd.grad(loss, list(learned.values()), allow_unused=True)
            uphill = [torch.zeros_like(p) if g is None else g for p, g in zip(learned.values(), found, strict=True)]
            scale = self.rho / (torch.stack([g.norm() for g in uphill]).norm() + 1e-12)
            there = {
                name: (p + scale * g).detach().requires_grad_()
                for (name, p), g in zip(learned.items(), uphill, strict=True)
            }
            predictions = Predictions.of(logits(there), inputs.valid)
            reliable = reliable & self._reliable(predictions)
            if not bool(reliable.any()):
                return {}
            loss = mean_over(predictions.entropy(), reliable)
            return stepped(
                self.optimizer,
                state,
                torch.autograd.grad(loss, list(there.values()), create_graph=True, allow_unused=True),
            )

    def _reliable(self, predictions: Predictions) -> Tensor:
        return predictions.usable & (predictions.entropy().detach() < self.margin * math.log(predictions.classes))
