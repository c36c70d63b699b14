"""What an attacker knows of the adapter, and the surrogate that she differentiates for it.

=============  =========================================================  ==============================
``white``      the adapter as it is now                                   all images of the batch
``semi``       the source model, while the victim has adapted             all images of the batch
``grey``       the source model, and the answers to her own queries       her own images
``transfer``   a model of another architecture for the same task          her own images
=============  =========================================================  ==============================
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import gradients, hooks, policies
from ..estimators import Estimator
from ..methods import Adapter, adapt, affine_layers, extract_logits, has_batch_norm

STATES = {"white": "now", "semi": "source"}
"""The state of the adapter that an attacker knows, where she knows one."""
OWN_SIGHT = ("grey", "transfer")
"""What she knows where she sees no images but her own."""
KNOWLEDGE = (*STATES, *OWN_SIGHT)
Backward = Callable[[Estimator], Estimator] | None
"""From a layer's estimator to the one that its gradient is of; None for its own."""
FITS, RATE = 10, 0.1
"""SGD steps on the answers to a query, and their rate, as in RTTDP."""


class GreyBox:
    """A surrogate that starts as the source model and follows the answers that the attacker gets (RTTDP).

    It normalises with the statistics of the images that it is given, by the victim's own estimator, because a defence
    must stand where it is known. After each query its affine parameters take ten SGD steps of 0.1 on the symmetric
    divergence ½ KL(a‖s) + ½ KL(s‖a), averaged over the images, of its predictions s for what was sent from the answers
    a. RTTDP's code also has a weight decay of 0.001, which is left out here. It has a state, so use one per stream.
    """

    def __init__(self) -> None:
        self.fitted: dict[str, Tensor] = {}
        """The affine parameters of all normalisation layers after the queries so far; empty before the first."""

    def surrogate(self, adapter: Adapter, gradient: str, temperature: float) -> Callable[[Tensor], Tensor]:
        """Return the surrogate as a differentiable function from images to logits, which changes nothing."""
        backward = gradients.get(gradient, temperature)
        parameters = {**adapter.source_state["learned"], **self.fitted}

        def predict(images: Tensor) -> Tensor:
            return adapter.run_alone(_predict, adapter, parameters, images, backward)

        return predict

    def learn_from(self, adapter: Adapter, images: Tensor, answers: Tensor) -> None:
        """Fit the affine parameters to the logits that were returned for images of hers; others are not needed."""
        usable = answers.flatten(1).isfinite().all(dim=1) & images.flatten(1).isfinite().all(dim=1)
        if not bool(usable.any()):
            return
        images, log_a = images[usable], answers[usable].detach().float().log_softmax(dim=1)
        source = adapter.source_state["learned"]
        if not self.fitted:
            self.fitted = _affine_parameters(adapter, source)
        fitted = {name: p.detach().clone().requires_grad_() for name, p in self.fitted.items()}
        with torch.enable_grad():
            optimizer = torch.optim.SGD(list(fitted.values()), lr=RATE)
            for _ in range(FITS):
                log_s = adapter.run_alone(_predict, adapter, {**source, **fitted}, images, None)
                loss = symmetric_divergence(log_s.float().log_softmax(dim=1), log_a)
                if not bool(loss.isfinite()):
                    break
                for p, gradient in zip(
                    fitted.values(), torch.autograd.grad(loss, list(fitted.values()), allow_unused=True), strict=True
                ):
                    p.grad = gradient
                optimizer.step()
        after = {name: p.detach() for name, p in fitted.items()}
        if all(bool(p.isfinite().all()) for p in after.values()):
            self.fitted = after

    def state(self) -> dict[str, Any]:
        """Return the fitted parameters."""
        return dict(self.fitted)

    def load(self, state: dict[str, Any], device: torch.device) -> None:
        """Continue from what ``state`` returned."""
        self.fitted = {name: p.to(device) for name, p in state.items()}


class Foreign:
    """A model of the attacker's own, which stands for the victim's. It normalises with the statistics of its images."""

    def __init__(self) -> None:
        self._adapter: Adapter | None = None

    def adapter(self, model: nn.Module, device: torch.device) -> Adapter:
        """Return the model with batch statistics, where it has BatchNorm, on a device."""
        if self._adapter is None:
            robust = has_batch_norm(model)
            self._adapter = adapt(model, "tebn" if robust else "source", "mean" if robust else None)
        return self._adapter.to(device)


def symmetric_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return ½ KL(q‖p) + ½ KL(p‖q) of rows of log-probabilities, averaged over the rows."""
    forward = F.kl_div(log_p, log_q, reduction="batchmean", log_target=True)
    return (forward + F.kl_div(log_q, log_p, reduction="batchmean", log_target=True)) / 2


def _affine_parameters(adapter: Adapter, source: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the source model's affine parameters of all normalisation layers, by their names in the model."""
    found = {}
    for layer, module in affine_layers(adapter.model).items():
        for kind in ("weight", "bias"):
            parameter, name = getattr(module, kind, None), f"{layer}.{kind}" if layer else kind
            if parameter is not None:
                found[name] = source.get(name, parameter).detach().clone()
    return found


def _predict(adapter: Adapter, parameters: dict[str, Tensor], images: Tensor, backward: Backward) -> Tensor:
    """Return the logits of the adapter's model with these parameters and with the statistics of these images."""
    model = adapter.model
    if model.training:
        model.eval()
    normalise = hooks.use_policy(model, policies.batch()) if adapter.layers else nullcontext()
    replace_gradient = hooks.backward_through(model, backward) if backward and adapter.layers else nullcontext()
    with normalise, replace_gradient:
        output = torch.func.functional_call(model, parameters, (images,))
    return extract_logits(output, adapter.logits, len(images))
