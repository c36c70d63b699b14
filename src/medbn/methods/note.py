"""NOTE: robust continual test-time adaptation against temporal correlation (Gong et al., NeurIPS 2022)."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .. import hooks, kernels, policies
from ..layers import LayerPass
from ._bounded_influence import WITHOUT_BATCH
from ._call import Inputs
from ._check_state import Values, check_count
from ._image_memory import check_remembered, offer_images, predicted_classes
from ._method import Run
from ._registry import register
from .learner import Learner


@register("note")
class NOTE(Learner):
    """Corrects the normalisation of unusual images, and learns from a reservoir that is balanced over predictions.

    *Instance-aware normalisation (IABN)*: where an image's own moments differ by more than their sampling error from
    those of the layer, μ and σ², it is normalised with μ + ψ(μᵢ − μ; k √(σ²/L)) and σ² + ψ(σᵢ² − σ²; k σ² √(2/(L − 1)))
    instead. L is the number of pixels, and ψ(x; λ) is x moved towards 0 by λ. *Memory*: prediction-balanced reservoir
    sampling. Where there is no room, a random image of a largest class is replaced. If the new image is of such a class
    itself, it replaces one of that class, with a probability of m/n for m images in memory and n predicted so far.
    *Learning*: after every N images a step on the memory's mean entropy; its images are normalised with their own
    statistics, which then enter a moving average. Test images are normalised with the average.

    NOTE's source models were trained with IABN, and those that users have were not. With them it is not the method of
    NOTE's paper, so reports write "NOTE (BatchNorm source)". Where images have one pixel IABN changes nothing.

    Args:
        model: the model to adapt.
        width: k; 4 in NOTE's code. ``math.inf`` switches IABN off.
        capacity: the images in memory; 64 in NOTE's paper.
        frequency: N, how many images come between two steps; 64 in NOTE's paper.
        momentum: the weight of the memory's statistics in the average; 0.01 in NOTE's code.
        lr: 1e-4, as in NOTE's code.
        options: those of Learner.

    NOTE's code takes unbiased variances of the memory, and the mean of the entropy's terms over the classes too, which
    Adam does not see. A batch is predicted, and its images put into the memory, before any of it is learned from; that
    code does it image by image. An attacker cannot change a prediction with images of the same batch; the surrogate is
    this pass.
    """

    label: ClassVar[str] = "NOTE (BatchNorm source)"
    policy = WITHOUT_BATCH
    keeps_average: ClassVar[bool] = True
    image_entries: ClassVar[tuple[str, ...]] = (*Learner.image_entries, "images", "classes", "predicted")
    surrogate_from_policies: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        *,
        width: float = 4.0,
        capacity: int = 64,
        frequency: int = 64,
        momentum: float = 0.01,
        lr: float | Tensor = 1e-4,
        **options: Any,
    ) -> None:
        super().__init__(model, lr=lr, **options)
        for name, value in (("capacity", capacity), ("frequency", frequency)):
            if value < 1:
                raise ValueError(f"{name} is a number of images, at least 1; got {value}.")
        if not width >= 0:
            raise ValueError(f"width is a number from 0 on, got {width!r}.")
        self._average = policies.ema(momentum)
        self.width = width
        self.capacity = capacity
        self.frequency = frequency
        self.memory |= {"images": {}, "classes": [], "predicted": [], "seen": 0}

    def commits_prediction(self) -> bool:
        """Return False: the memory's statistics enter the average, the batch's do not."""
        return False

    # --- instance-aware normalisation ---------------------------------------------------------------------------------

    def predict_with(self, forward: Callable[[], Any], inputs: Inputs) -> Any:
        """Return the output of a forward pass with instance-aware normalisation."""
        with self._normalise_instances():
            return forward()

    def _normalise_instances(self) -> AbstractContextManager[None]:
        unchanged = not self.layers or math.isinf(self.width)
        return nullcontext() if unchanged else hooks.adjust_outputs(self.model, self._normalise_instance)

    def _normalise_instance(self, seen: LayerPass, output: Tensor) -> Tensor:
        """Return a layer's output with each image's corrected moments; NaN for images that are not finite."""
        pixels = math.prod(output.shape[2:])
        if pixels < 2:
            return output
        finite = kernels.view_per_image(output.detach().flatten(1).isfinite().all(dim=1), output)
        x = torch.where(finite, seen.input, 0.0).to(kernels.working_dtype(output))  # NaN must enter no gradient
        per_channel = (1, -1, *[1] * (x.dim() - 2))
        mean, variance = (s.to(x).view(per_channel) for s in (seen.centre, seen.variance))
        axes, scale = tuple(range(2, x.dim())), variance + seen.layer.eps
        own_mean, own_variance = x.mean(dim=axes, keepdim=True), x.var(dim=axes, keepdim=True)
        mean = mean + _shrink(own_mean - mean, self.width * (scale / pixels).sqrt())
        variance = variance + _shrink(own_variance - variance, self.width * scale * math.sqrt(2.0 / (pixels - 1)))
        y = normalised = (x - mean) * (variance.clamp(min=0.0) + seen.layer.eps).rsqrt()
        if seen.layer.weight is not None:
            y = y * seen.layer.weight.to(x).view(per_channel)
        if seen.layer.bias is not None:
            y = y + seen.layer.bias.to(x).view(per_channel)
        y = torch.where(finite, y.to(output.dtype), torch.nan)
        if self._images is not None:
            self._images.add(seen.layer, lambda: normalised, y)
        return y

    # --- learning from the memory -------------------------------------------------------------------------------------

    def update(self, inputs: Inputs, output: Any) -> bool:
        """Offer the images to the memory one by one, and learn from it after every ``frequency`` of them."""
        predictions = self.predictions_of(inputs, output)
        labels, memory = predicted_classes(predictions), self.memory
        memory["predicted"] = memory["predicted"] or [0] * predictions.classes

        def offer(positions: list[int], new: int, image: int) -> None:
            self._offer(positions, new, labels[image])

        def learn(remembered: Inputs) -> bool:
            steps = [self._learn_from(remembered) for _ in range(self.steps)]
            return any(steps)

        return offer_images("NOTE", memory, inputs, predictions, self.frequency, offer, learn)

    def _offer(self, positions: list[int], new: int, label: int) -> None:
        """Remember an image by prediction-balanced reservoir sampling."""
        classes, predicted = self.memory["classes"], self.memory["predicted"]
        predicted[label] += 1
        if len(positions) >= self.capacity:
            counts = {c: classes.count(c) for c in set(classes)}
            largest = sorted(c for c, count in counts.items() if count == max(counts.values()))
            if label in largest:
                if float(torch.rand((), generator=self.generator)) > counts[label] / predicted[label]:
                    return
                replaced = label
            else:
                replaced = largest[self._random_index(len(largest))]
            of_class = [i for i, c in enumerate(classes) if c == replaced]
            place = of_class[self._random_index(len(of_class))]
            del positions[place], classes[place]
        positions.append(new)
        classes.append(label)

    def _random_index(self, length: int) -> int:
        return int(torch.randint(length, (), generator=self.generator))

    def _learn_from(self, inputs: Inputs) -> bool:
        """Take one step on the memory's entropy, and commit its statistics."""
        with self.ignore_padding(inputs), self.use_policy(policies.batch()), self._normalise_instances():
            with self.observe_statistics() as gather:
                predictions = self.predict_again(inputs)
            if not bool(predictions.usable.any()):
                return False
            taken = self.take_step(self.gradients_of(self.mean_of(predictions.entropy(), predictions.usable)))
        if taken:
            gather()(self._average)
        return taken

    def unroll(self, run: Run, state: dict[str, Any], inputs: Inputs) -> dict[str, Tensor]:
        """Raise: which images enter the memory is no smooth function of the batch."""
        raise ValueError(
            "NOTE cannot be unrolled: it learns from its memory, not from the batch at hand; use unroll=0."
        )

    def surrogate_key(self, state: dict[str, Any], images: int) -> Hashable:
        """Return a key with the width of the correction."""
        return (super().surrogate_key(state, images), type(self), self.width)

    def changes_output(self) -> bool:
        """Return whether images are normalised as no plain BatchNorm does."""
        return bool(self.layers) and not math.isinf(self.width)

    def check_memory(self, memory: dict[str, Any], values: Values) -> None:
        """Require a class for each image, and counts of what was predicted."""
        check_remembered(memory, self.capacity)
        check_count("the number of images seen", memory["seen"])
        if not isinstance(memory["predicted"], list):
            raise ValueError("the numbers of predictions must be a list with one for each class.")
        for count in memory["predicted"]:
            check_count("the number of predictions of a class", count)
        if any(label >= len(memory["predicted"]) for label in memory["classes"]):
            raise ValueError("an image in memory is of a class that was never predicted.")


def _shrink(x: Tensor, width: Tensor) -> Tensor:
    """Return x moved towards 0 by a width, and 0 where it is nearer than that."""
    return x.sign() * (x.abs() - width).clamp(min=0.0)
