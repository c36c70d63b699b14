"""Warn about images in 0 to 255 for a model that was trained on images in 0 to 1."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch

from .. import hooks
from ._call import Inputs

if TYPE_CHECKING:
    from .base import Adapter

LARGE = 10.0
"""Values that neither images in [0, 1] have nor those that are normalised with a mean and a standard deviation."""
RATIO = 1000.0
"""How many times the source variance of the first layer a batch must have; images times 255 have 65,025 times."""


def warn_if_scaled(adapter: Adapter, inputs: Inputs) -> None:
    """Warn if a batch has large values that the source statistics of the first layer do not expect.

    Costs one maximum, and a forward pass if that is large; an adapter therefore asks at its first call only.
    """
    images = [image for image in inputs.images().values() if image.is_floating_point() and image.dim() >= 3]
    layers = [layer for layer in adapter.layers.values() if layer.running_var is not None]
    if not images or not layers:
        return
    large = (images[0].detach() > LARGE).any().long()
    if not bool(inputs.total_of(large)):
        return
    with torch.no_grad(), hooks.observe(adapter.model, inputs=False, always_estimate=True) as observations:
        adapter.run_model(inputs)
        first = next((o for o in observations if o.layer in layers and o.batch_variance is not None), None)
        if first is None or first.batch_variance is None or first.layer.running_var is None:
            return
        ratio = float((first.batch_variance / (first.layer.running_var + first.layer.eps)).median())
    if ratio > RATIO:
        warnings.warn(
            f"the images have values above {LARGE:.0f}, and their variance in the first normalised"
            f" layer is {ratio:,.0f} times that of the source images: if those were in [0, 1], divide"
            " by 255.",
            stacklevel=2,
        )
