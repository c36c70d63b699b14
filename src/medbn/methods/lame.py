"""LAME: parameter-free online test-time adaptation (Boudiaf et al., CVPR 2022)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import policies
from .._errors import unknown_name
from ._call import Inputs, extract_logits, replace_tensor
from ._registry import register
from .base import Adapter


@register("lame")
class LAME(Adapter):
    """Corrects the predictions of a batch so that images with similar features are predicted alike; learns nothing.

    With the model's probabilities pᵢ and weights wᵢⱼ between images, it minimises Σᵢ KL(zᵢ ‖ pᵢ) − Σᵢⱼ wᵢⱼ zᵢᵀzⱼ by
    the iteration zᵢ ∝ pᵢ · exp(Σⱼ wᵢⱼ zⱼ), from zᵢ = pᵢ on (eq. 5 and 7 of LAME's paper). Its output are the logarithms
    of z. The model normalises with its training statistics, so that the estimator has no effect.

    It helps where the images of a batch are of few classes, as in a stream that is sorted by label, and harms where
    they are not. An image's prediction depends on the others of its batch, and nothing bounds what malicious ones do.

    Args:
        model: the model to adapt: a classifier. Dense outputs are refused.
        neighbours: k of the affinity: wᵢⱼ is ``weight`` if j is among the k nearest neighbours of i by the Euclidean
            distance of the features, scaled to length 1, and 0 otherwise; 5 in LAME's paper and code.
        weight: the weight of an image among the nearest neighbours; 1 in LAME's paper.
        iterations: 100 at most in LAME's code, which stops where the energy changes by less than 1e-8 of it. We run all
            of them, which costs little and lets no GPU wait.
        features: the name of the layer whose *input* are the features. None for the last linear layer.
        options: those of Adapter.

    The surrogate is differentiated through all iterations; which images are neighbours is a constant.
    """

    policy = policies.source()
    needs_batch_norm: ClassVar[bool] = False

    def __init__(
        self,
        model: nn.Module,
        *,
        neighbours: int = 5,
        weight: float = 1.0,
        iterations: int = 100,
        features: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, **options)
        for name, value in (("neighbours", neighbours), ("iterations", iterations)):
            if value < 1:
                raise ValueError(f"{name} is a whole number of at least 1, got {value!r}.")
        self.neighbours = neighbours
        self.weight = weight
        self.iterations = iterations
        self.features = _find_classifier(model, features)

    def predict_with(self, forward: Callable[[], Any], inputs: Inputs) -> Any:
        """Return the output of a forward pass with corrected logits."""
        seen: list[Tensor] = []
        hook = self.model.get_submodule(self.features).register_forward_pre_hook(
            lambda module, args: seen.append(args[0])
        )
        try:
            output = forward()
        finally:
            hook.remove()
        logits = extract_logits(output, self.logits, inputs.size)
        if logits.dim() > 2:
            raise ValueError(f"LAME corrects one prediction per image, and the logits have {logits.dim()} dimensions.")
        if not seen or len(seen[-1]) != inputs.size:
            raise ValueError(f"the layer {self.features!r} has no input per image; name another with features=.")
        valid = None if inputs.valid is None else inputs.gather(inputs.valid)
        corrected = self._correct(inputs.gather(logits), inputs.gather(seen[-1].flatten(1)), valid)
        return replace_tensor(output, logits, inputs.own(corrected))

    def _correct(self, logits: Tensor, features: Tensor, valid: Tensor | None) -> Tensor:
        """Return the logarithms of z; the logits themselves for padding and images that are not finite."""
        # Autocast leaves float64 alone. To switch it off is unsafe: an interrupt while it comes on again would leave
        # torch with weights cached for ever.
        wide = torch.float32 if logits.device.type == "mps" else torch.float64
        usable = F.log_softmax(logits.detach().to(wide), dim=1).isfinite().all(dim=1)
        usable = usable & features.isfinite().all(dim=1)
        if valid is not None:
            usable = usable & valid.to(usable.device)
        log_p = F.log_softmax(torch.where(usable.unsqueeze(1), logits, 0.0).to(wide), dim=1)
        affinity = self._affinity(features.detach().to(wide), usable)
        log_z = log_p
        for _ in range(self.iterations):
            log_z = F.log_softmax(log_p + affinity @ log_z.exp(), dim=1)
        return torch.where(usable.unsqueeze(1), log_z.to(logits.dtype), logits)

    def _affinity(self, features: Tensor, usable: Tensor) -> Tensor:
        """Return the ``(B, B)`` weights between images."""
        unit = F.normalize(torch.where(usable.unsqueeze(1), features, 0.0), dim=1)
        distance = 1.0 - unit @ unit.T  # half of its square, which has the same order
        excluded = torch.eye(len(unit), dtype=torch.bool, device=unit.device) | ~usable | ~usable.unsqueeze(1)
        distance = distance.masked_fill(excluded, torch.inf)
        count = min(self.neighbours, len(unit) - 1)
        nearest = distance.topk(count, dim=1, largest=False)
        weights = torch.where(nearest.values.isfinite(), self.weight, 0.0).to(unit.dtype)
        return torch.zeros_like(distance).scatter(1, nearest.indices, weights)


def _find_classifier(model: nn.Module, name: str | None) -> str:
    """Return the name of the layer whose input are the features: the one given, or the last linear one."""
    if name is not None:
        modules = dict(model.named_modules())
        if name not in modules:
            raise unknown_name("layer", name, [each for each in modules if each])
        return name
    linear: list[str] = [each for each, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError(
            f"{type(model).__name__} has no linear layer, whose input would be LAME's features; name a layer with"
            " features=."
        )
    return linear[-1]
