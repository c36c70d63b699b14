"""Normalisation of the input as a part of the model, so that all models and attacks work on images in [0, 1].

The constants are non-persistent buffers: a model's state_dict keeps the keys of the published checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

Constants = float | Sequence[float]
"""One value per channel, or one for all."""

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class InputNormalisation(nn.Module):
    """Compute ``(x − mean) / std`` per channel, for images ``(B, channels, H, W)`` in [0, 1].

    Args:
        mean: what is subtracted, per channel or one value for all.
        std: what is divided by, likewise.
        channels: the number of channels.

    >>> InputNormalisation(0.5, 0.5, channels=1)(torch.tensor([[[[0.0, 1.0]]]]))
    tensor([[[[-1.,  1.]]]])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Constants, std: Constants, channels: int = 3) -> None:
        super().__init__()
        self.register_buffer("mean", _constants_tensor("mean", mean, channels), persistent=False)
        self.register_buffer("std", _constants_tensor("std", std, channels), persistent=False)
        # On the CPU, because a model built on the meta device has no values to check.
        if not min(torch.as_tensor(std, device="cpu").flatten().tolist()) > 0:
            raise ValueError(f"std={std!r} must be positive; std=1 leaves the scale unchanged.")

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised images."""
        if not x.is_floating_point():
            raise TypeError(f"expected floating-point images in [0, 1], got {x.dtype}: divide bytes by 255.")
        if x.dim() != 4 or x.shape[1] != self.mean.shape[1]:
            expected = f"(batch, {self.mean.shape[1]}, height, width)"
            raise ValueError(f"expected images of shape {expected}, got {tuple(x.shape)}.")
        return (x - self.mean) / self.std

    def extra_repr(self) -> str:
        """Return the constants, for the module's representation."""
        return f"mean={self.mean.flatten().tolist()}, std={self.std.flatten().tolist()}"


class NormalisedModel(nn.Module):
    """A model that expects normalised images, behind an ``InputNormalisation``: the whole takes images in [0, 1]."""

    def __init__(
        self,
        model: nn.Module,
        mean: Constants = IMAGENET_MEAN,
        std: Constants = IMAGENET_STD,
        channels: int = 3,
    ) -> None:
        super().__init__()
        self.normalise = InputNormalisation(mean, std, channels)
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images in [0, 1]."""
        logits: Tensor = self.model(self.normalise(x))
        return logits


def _constants_tensor(name: str, constants: Constants, channels: int) -> Tensor:
    values = torch.as_tensor(constants, dtype=torch.get_default_dtype()).flatten()
    if values.numel() not in (1, channels):
        raise ValueError(
            f"{name}={constants!r} has {values.numel()} values for channels={channels}; give one per channel, or one"
            " for all."
        )
    return values.expand(channels).reshape(1, channels, 1, 1).clone()
