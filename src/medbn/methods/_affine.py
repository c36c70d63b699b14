"""The normalisation layers of a model, of any kind, whose affine parameters methods learn."""

from __future__ import annotations

import re

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from ..layers import RobustBatchNorm

PER_IMAGE = (nn.LayerNorm, nn.GroupNorm, _InstanceNorm, nn.RMSNorm)
"""Layers whose statistics are of one image alone. They need no protection, and have affine parameters to learn."""
_NAME = re.compile(r"(Layer|Group|Instance|RMS|Rms)_?Norm")
"""Names of classes of other libraries that do the same, such as ``LlamaRMSNorm``, and are no subclasses of torch's."""


def affine_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the normalisation layers that have affine parameters to learn, each once, by name.

    These are the robust layers, and those that normalise each image by itself: LayerNorm, GroupNorm, InstanceNorm and
    RMSNorm. BatchNorm layers that are not robust are left alone, as ``exclude=`` says.
    """
    return {name: module for name, module in model.named_modules() if _is_learned(module)}


def layers_with_parameters(model: nn.Module) -> dict[str, nn.Module]:
    """Return all modules that have parameters of their own, by name, but BatchNorm layers that are not robust."""
    return {
        name: module
        for name, module in model.named_modules()
        if module._parameters and (isinstance(module, RobustBatchNorm) or not isinstance(module, _BatchNorm))
    }


def has_batch_norm(model: nn.Module) -> bool:
    """Return whether a model has layers with batch statistics, robust or not."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def _is_learned(module: nn.Module) -> bool:
    if isinstance(module, RobustBatchNorm):
        return True
    named = not isinstance(module, _BatchNorm) and _NAME.search(type(module).__name__) is not None
    return (isinstance(module, PER_IMAGE) or named) and isinstance(getattr(module, "weight", None), Tensor)
