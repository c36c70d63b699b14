"""RTTDP's consistency penalty: keep the activations of malicious images near those of the same images before.

Each image has a Gaussian per channel: the mean and the variance of its activation over space, at the inputs of the
robust layers before the last stage, which is where RTTDP's code has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from .. import hooks
from ..methods import Adapter, group_stages
from ._batch import Batch, Moments


def early_layers(adapter: Adapter) -> dict[str, float]:
    """Return the ``eps`` of the robust layers before the last stage by name; without stages, of the first 3/4."""
    names = list(adapter.layers)
    if not names:
        raise ValueError("consistency= is about the inputs of BatchNorm layers, and this model has none; leave it out.")
    stages = group_stages(names)
    last = names.index(stages[-1][0]) if stages else len(names) - len(names) // 4
    return {name: adapter.layers[name].eps for name in names[: max(last, 1)]}


def clean_moments(adapter: Adapter, surrogate: Callable[..., Tensor], batch: Batch) -> Moments:
    """Return each malicious image's moments at the early layers before the attack, by the layer's name."""
    with torch.no_grad(), hooks.observe(adapter.model) as observations:
        surrogate(batch.images)
        inputs = {o.name: o.input for o in observations}
    eps = early_layers(adapter)
    return {
        name: moments_of(x[batch.indices], eps[name])
        for name, x in inputs.items()
        if name in eps and x is not None and len(x) == len(batch.images)
    }


def moments_of(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the mean of each image and channel, and its variance plus ``eps``, of an activation ``(B, C, *)``."""
    x = x.flatten(2) if x.dim() > 2 else x.unsqueeze(2)
    return x.mean(dim=2), x.var(dim=2, unbiased=False) + eps


def gaussian_divergence(clean: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> Tensor:
    """Return KL(clean‖other) of Gaussians with these means and variances, elementwise."""
    (m, v), (n, w) = clean, other
    return (torch.log(w / v) + (v + (m - n).square()) / w - 1.0) / 2.0


def divergence(adapter: Adapter, inputs: Mapping[str, Tensor | None], batch: Batch) -> Tensor:
    """Return the penalty, given the inputs of all layers for the poisoned batch."""
    eps, each = early_layers(adapter), []
    for name, clean in batch.moments.items():
        x = inputs[name]
        assert x is not None
        poisoned = moments_of(x.index_select(0, batch.indices), eps[name])
        each.append(gaussian_divergence(clean, poisoned).sum(dim=1).mean())
    return torch.stack(each).mean()
