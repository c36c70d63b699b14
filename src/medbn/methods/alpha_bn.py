"""α-BN: batch statistics with those of training as a prior (Schneider et al., NeurIPS 2020; You et al., 2021)."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import nn

from .. import policies
from ..policies import Policy
from ._call import Inputs
from ._registry import register
from .base import Adapter


@register("alpha_bn")
class AlphaBN(Adapter):
    """Mixes training and batch statistics in every layer; learns nothing and keeps nothing.

    The same as TeBN with an estimator ``NAME@PRIOR``, under the name that people look for. There are two rules for the
    weight of the training statistics:

    - a fixed one, ``prior`` (You et al.);
    - N / (N + n) for a batch of n images (Schneider et al.): the training statistics count as N images.

    As in every layer here the batch's variance is the biased one; that of collections is unbiased.

    Args:
        model: the model to adapt.
        prior: the weight of the training statistics, α of You et al. The default 0.9 is what collections of methods use
            (some write 0.1, the weight of the batch); it was not compared with the paper.
        source_images: N. Given, it takes the place of ``prior``. Schneider et al. choose it by the size of the batches:
            the smaller they are, the more it helps. n counts the images that are finite and no padding.
        options: those of Adapter.
    """

    label: ClassVar[str] = "α-BN"
    surrogate_from_policies: ClassVar[bool] = True

    def __init__(
        self, model: nn.Module, *, prior: float = 0.9, source_images: float | None = None, **options: Any
    ) -> None:
        super().__init__(model, **options)
        self.policy = policies.interpolate(prior)
        if source_images is not None and not 0 <= source_images < math.inf:
            raise ValueError(f"source_images is a number of images, from 0 on; got {source_images!r}.")
        self.source_images = source_images

    def commit_policy(self, images: int, memory: dict[str, Any]) -> Policy | None:
        """Return the mixture for a batch of that many images; None where its weights are fixed."""
        if self.source_images is None:
            return None
        total = self.source_images + images
        return policies.interpolate(self.source_images / total if total else 1.0)

    def run_model(self, inputs: Inputs) -> Any:
        """Return the model's output, normalised with the mixture for this number of images."""
        policy = None
        if self.source_images is not None:
            policy = self.commit_policy(self._count_finite(inputs), self.memory)
        if policy is None:
            return super().run_model(inputs)
        with self.use_policy(policy):
            return super().run_model(inputs)

    def repeats_pass(self) -> bool:
        """Return whether a captured pass may replace the next one: not where its weights depend on the images."""
        return super().repeats_pass() and self.source_images is None

    def _count_finite(self, inputs: Inputs) -> int:
        """Return how many images are finite and not padding, for which a GPU waits."""
        masks = [image.detach().flatten(1).isfinite().all(dim=1) for image in inputs.images().values()]
        masks += [] if inputs.valid is None else [inputs.valid]
        return int(inputs.total_of(torch.stack([mask.to(masks[0].device) for mask in masks]).all(dim=0).sum()))
