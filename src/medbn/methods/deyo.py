"""DeYO: entropy is not enough for test-time adaptation (Lee et al., ICLR 2024)."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ._augment import change_images, draw_seed, shuffle_patches
from ._call import Inputs, Predictions
from ._check_state import Values, check_count
from ._entropy import EntropyLearner
from ._method import Run
from ._registry import register


@register("deyo")
class DeYO(EntropyLearner):
    """Minimises a weighted entropy of the samples that are certain, and are so because of the shape of an object.

    PLPD, the difference of the pseudo-label's probability, is p(ŷ | x) − p(ŷ | x′). ŷ is the predicted class of x, and
    x′ has the patches of x in random order, which destroys shapes and leaves colours and textures. A sample is learned
    from if its entropy E is below τ_E and its PLPD above τ_P (eq. 8). Its weight is exp(E₀ − E) + exp(PLPD) (eq. 10),
    a constant in the gradient.

    Args:
        model: the model to adapt: a classifier. Dense outputs are refused, whose labels would move with the patches.
        margin: τ_E as a fraction of ln(classes); 0.5 in DeYO's code.
        weight_margin: E₀ as a fraction of ln(classes); 0.4 in DeYO's code.
        plpd: τ_P; 0.2 in DeYO's code and what collections use on CIFAR. 0.3 on ImageNet, which DeYO's script has for
            models with BatchNorm; for others it has 0.2.
        patches: patches in a row and in a column; 4 in DeYO's code.
        options: those of EntropyLearner, ``loss="come"`` among them; the affine parameters of the last stage are not
            learned, as in DeYO's code. That learns on ImageNet with a momentum of 0.9 and a rate of 0.00025.

    As in DeYO's code, x′ is normalised with statistics of the shuffled images that have passed the first filter, and
    the loss is the mean over the samples that have passed both.
    """

    freezes_last_stage: ClassVar[bool] = True
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "imagenet": {"plpd": 0.3, "optimizer": "momentum", "lr": 2.5e-4},
    }
    surrogate_from_policies: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        *,
        margin: float = 0.5,
        weight_margin: float = 0.4,
        plpd: float = 0.2,
        patches: int = 4,
        **options: Any,
    ) -> None:
        super().__init__(model, **options)
        if patches < 2:
            raise ValueError(f"patches is how many are in a row, at least 2; got {patches}.")
        self.margin = margin
        self.weight_margin = weight_margin
        self.plpd = plpd
        self.patches = patches
        self.memory["seed"] = draw_seed(self.generator)

    def step(self, inputs: Inputs, predictions: Predictions) -> bool:
        """Take one step, and draw how the next batch is shuffled."""
        taken = super().step(inputs, predictions)
        self.memory["seed"] = draw_seed(self.generator)
        return taken

    def batch_loss(
        self, inputs: Inputs, predictions: Predictions, memory: dict[str, Any], learned: dict[str, Tensor], run: Run
    ) -> Tensor | None:
        """Return the weighted entropy; None if no sample passes both filters."""
        certain = self.filters(predictions, memory)["entropy"]
        if predictions.dense:
            raise ValueError("DeYO shuffles patches, and the labels of a dense output would move with them.")
        if self.nothing_to_learn(certain):
            return None
        difference = self._difference(inputs.keep_only(certain), predictions, memory, run)
        selected = certain & (difference > self.plpd)
        if self.nothing_to_learn(selected):
            return None
        entropy = self.entropy_of(predictions)
        margin = self.weight_margin * math.log(predictions.classes)
        weight = torch.exp(margin - entropy.detach()) + torch.exp(difference)
        return self.mean_of(weight * entropy, selected)

    def _difference(self, inputs: Inputs, predictions: Predictions, memory: dict[str, Any], run: Run) -> Tensor:
        """Return each sample's PLPD; −∞ where the shuffled image has no finite prediction."""
        order = torch.zeros(inputs.total, self.patches**2, dtype=torch.int64)
        usable = predictions.images.cpu()  # what is drawn does not depend on padding
        if self.influence is not None:
            usable = torch.ones_like(usable)  # nor on an image that is not finite, which a single sender can send
        generator = torch.Generator().manual_seed(memory["seed"])
        order[usable] = torch.rand(int(usable.sum()), self.patches**2, generator=generator).argsort(dim=1)
        own = inputs.own(order)
        shuffled = change_images(inputs, lambda x: shuffle_patches(x, own), "DeYO")
        with torch.no_grad(), self.ignore_padding(shuffled):
            other = self.predictions_of(shuffled, run(shuffled, None))
        labels = predictions.probabilities().argmax(dim=1, keepdim=True)
        before, after = (each.probabilities().gather(1, labels).squeeze(1) for each in (predictions, other))
        return torch.where(other.usable, before - after, -torch.inf)

    def filters(self, predictions: Predictions, memory: dict[str, Any]) -> dict[str, Tensor]:
        """Return a mask of the samples whose entropy is low enough; PLPD needs the shuffled images."""
        margin = self.margin * math.log(predictions.classes)
        return {"entropy": predictions.usable & (self.entropy_of(predictions).detach() < margin)}

    def check_memory(self, memory: dict[str, Any], values: Values) -> None:
        """Require a seed."""
        check_count("the seed of the shuffled patches", memory["seed"])
