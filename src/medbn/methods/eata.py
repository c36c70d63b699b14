"""ETA and EATA: efficient test-time adaptation without forgetting (Niu et al., ICML 2022)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ._call import Inputs, Predictions, mean_over
from ._check_state import Values, check_tensor
from ._entropy import EntropyLearner
from ._part import one_each
from ._registry import register


@register("eta")
class ETA(EntropyLearner):
    """Minimises the mean of exp(E₀ − E(x)) · E(x) over the samples that are reliable and not redundant.

    E(x) is the entropy of the prediction f(x); the weight exp(E₀ − E(x)) is a constant in the gradient, also where an
    attack unrolls the step. A sample is reliable if E(x) < E₀, and not redundant if |cos(f(x), m)| < ε, where m is a
    moving average of the predictions of the samples that were learned from.

    Args:
        model: the model to adapt.
        margin: E₀ as a fraction of ln(classes); 0.4 in EATA's paper and the MedBN paper.
        redundancy: ε, the cosine similarity to the average prediction from which a sample is redundant; 0.4 on
            CIFAR-10 and CIFAR-100 (for the latter some use 0.1), 0.05 on ImageNet, as in EATA's paper and code.
        average: the weight of the past in that average; 0.9 in EATA's code.
        options: those of EntropyLearner; ``loss="come"`` takes COME's entropy for E.

    Like EATA's code, we average the loss over the selected samples, and take no step when there are none.
    """

    presets: ClassVar[dict[str, dict[str, Any]]] = {"imagenet": {"redundancy": 0.05}}
    surrogate_from_policies: ClassVar[bool] = True
    replays: ClassVar[bool] = True

    def __init__(
        self, model: nn.Module, *, margin: float = 0.4, redundancy: float = 0.4, average: float = 0.9, **options: Any
    ) -> None:
        super().__init__(model, **options)
        self.margin = margin
        self.redundancy = redundancy
        self.average = average
        self.memory["prediction"] = None

    def loss(self, predictions: Predictions, memory: dict[str, Any], learned: dict[str, Tensor]) -> Tensor | None:
        """Return the weighted entropy; None if no sample is selected."""
        entropy, selected = self.entropy_of(predictions), self._select(predictions, memory)
        if self.nothing_to_learn(selected):
            return None
        margin = self.margin * math.log(predictions.classes)
        return self.mean_of(entropy * torch.exp(margin - entropy.detach()), selected)

    def step(self, inputs: Inputs, predictions: Predictions) -> bool:
        """Take one step, and update the average of the predictions that were learned from."""
        if not super().step(inputs, predictions):
            return False
        past = self.memory["prediction"]
        selected = self._select(predictions, self.memory)
        weight = 1 - self.average
        if self.influence is not None:
            if not bool(selected.any()):
                return True
            weight = weight * float(selected.sum()) / len(selected)  # so that a single image cannot replace it
        new = predictions.probabilities()[selected].mean(dim=0)
        self.memory["prediction"] = new if past is None else (1 - weight) * past + weight * new
        return True

    def filters(self, predictions: Predictions, memory: dict[str, Any]) -> dict[str, Tensor]:
        """Return masks of the samples that are reliable, ``"entropy"``, and of those that are not redundant."""
        entropy, average = self.entropy_of(predictions).detach(), memory["prediction"]
        reliable = predictions.usable & (entropy < self.margin * math.log(predictions.classes))
        if average is None:
            return {"entropy": reliable, "redundancy": predictions.usable}
        if len(average) != predictions.classes:
            raise ValueError(
                f"the average prediction in memory has {len(average)} classes, and the model"
                f" {predictions.classes}; the state was saved with another model. reset() it."
            )
        similarity = F.cosine_similarity(average.unsqueeze(0), predictions.probabilities(), dim=1)
        return {"entropy": reliable, "redundancy": predictions.usable & (similarity.abs() < self.redundancy)}

    def _select(self, predictions: Predictions, memory: dict[str, Any]) -> Tensor:
        """Return a mask of the samples that all filters let pass."""
        filters = self.filters(predictions, memory)
        return filters["entropy"] & filters["redundancy"]

    def check_memory(self, memory: dict[str, Any], values: Values) -> None:
        """Require an average of probabilities, or None before the first."""
        prediction, own = memory["prediction"], self.memory["prediction"]
        if prediction is not None:
            check_tensor(values, "the average prediction", prediction, None if own is None else own.shape, 0.0)
            if prediction.dim() != 1:
                raise ValueError(f"the average prediction must have one dimension, got {prediction.dim()}.")


@register("eata")
class EATA(ETA):
    """ETA with the penalty β · Σᵢ ωᵢ (θᵢ − θᵢ⁰)² on moving parameters that matter on source data.

    ωᵢ is the diagonal of the Fisher information: the mean squared gradient of the cross-entropy with the model's own
    predictions as labels.

    Args:
        model: the model to adapt.
        source: batches of source images, unlabelled: inputs of the model, or tuples whose first entry is that input. ω
            is measured on them, once. In a process group, each process has its part of every batch.
        fisher_weight: β; 1 on CIFAR and 2000 on ImageNet, as in EATA's code.
        fisher_samples: how many source images to use; 2000 in EATA's paper.
        options: those of ETA and EntropyLearner.

    EATA's paper averages squared gradients over samples. A sample has no gradient of its own where it is normalised
    with its batch, so like EATA's code we average the squared gradients of batches.
    """

    presets: ClassVar[dict[str, dict[str, Any]]] = {"imagenet": {"redundancy": 0.05, "fisher_weight": 2000.0}}
    needs_source_images: ClassVar[bool] = True
    surrogate_from_policies: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        *,
        source: Iterable[Any] | None = None,
        fisher_weight: float = 1.0,
        fisher_samples: int = 2000,
        **options: Any,
    ) -> None:
        if source is None:
            raise ValueError(
                "EATA needs batches of source images to know which parameters matter: pass source=, for example a"
                " DataLoader, or use method='eta', which is EATA without that."
            )
        if fisher_samples < 1:
            raise ValueError(f"fisher_samples is a number of images, at least 1; got {fisher_samples}.")
        super().__init__(model, **options)
        self.source = source
        self.fisher_weight = fisher_weight
        self.fisher_samples = fisher_samples

    def prepare(self) -> None:
        """Measure the Fisher information."""
        super().prepare()
        self.memory["fisher"] = self._fisher_information(self.source, self.fisher_samples)
        self.source = ()  # the source images may be a whole data set; they are not needed any more

    def _fisher_information(self, source: Iterable[Any], samples: int) -> dict[str, Tensor]:
        squares = [torch.zeros_like(p) for p in self.learned.values()]
        batches = used = 0
        device = next(iter(self.learned.values())).device
        for batch in source if self.group is None else one_each(source, self.group, device):
            inputs = self.read_call((batch[0] if isinstance(batch, tuple | list) else batch,), {})
            count = min(inputs.total, samples - used)
            inputs = inputs.first(count)
            images = {place: images.to(device) for place, images in inputs.images().items()}
            predictions = self.predict_again(inputs.with_images(images, inputs.size))
            if not bool(predictions.usable.any()):
                raise ValueError("a batch of source= has no image with a finite output.")
            labels = predictions.logits.detach().argmax(dim=1)
            loss = mean_over(F.cross_entropy(predictions.logits, labels, reduction="none"), predictions.usable)
            squares = [s + g.square() for s, g in zip(squares, self.plain_gradients_of(loss), strict=True)]
            batches, used = batches + 1, used + count
            if used >= samples:
                break
        if not batches:
            raise ValueError("source= has no batch.")
        return {name: s / batches for name, s in zip(self.learned, squares, strict=True)}

    def loss(self, predictions: Predictions, memory: dict[str, Any], learned: dict[str, Tensor]) -> Tensor | None:
        """Return ETA's loss plus the penalty."""
        loss = super().loss(predictions, memory, learned)
        if loss is None:
            return None
        return loss + self.unbounded(memory, learned)

    def unbounded(self, memory: dict[str, Any], learned: dict[str, Tensor]) -> Tensor:
        """Return the penalty."""
        source, fisher = self.source_state["learned"], memory["fisher"]
        penalty = [(fisher[name] * (p - source[name]).square()).sum() for name, p in learned.items()]
        return self.fisher_weight * torch.stack(penalty).sum()

    def check_memory(self, memory: dict[str, Any], values: Values) -> None:
        """Require a Fisher information of every learned parameter as well."""
        super().check_memory(memory, values)
        fisher = memory["fisher"]
        if not isinstance(fisher, dict) or fisher.keys() != self.learned.keys():
            raise ValueError("the Fisher information is not of the learned parameters.")
        for name, parameter in self.learned.items():
            check_tensor(values, f"the Fisher information of {name}", fisher[name], tuple(parameter.shape), 0.0)
