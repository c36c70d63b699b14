"""Input normalisation as a part of the model, so that every model takes images in [0, 1] and attacks stay there.

The constants are non-persistent buffers: a model's state_dict has the keys of the published checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

Constants = float | Sequence[float]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Normalise(nn.Module):
    """``(x − mean) / std`` per channel, for images ``(B, channels, H, W)`` in [0, 1].

    >>> Normalise(0.5, 0.5, channels=1)(torch.tensor([[[[0.0, 1.0]]]]))
    tensor([[[[-1.,  1.]]]])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Constants, std: Constants, channels: int = 3) -> None:
        super().__init__()
        self.register_buffer("mean", _constants("mean", mean, channels), persistent=False)
        self.register_buffer("std", _constants("std", std, channels), persistent=False)
        if not min(torch.as_tensor(std, device="cpu").flatten().tolist()) > 0:  # readable on the meta device too
            raise ValueError(f"std={std!r} must be positive; std=1 leaves the scale as it is.")

    def forward(self, x: Tensor) -> Tensor:
        """Normalise one batch."""
        if not x.is_floating_point():
            raise TypeError(f"images of dtype {x.dtype} were given; floating point in [0, 1] is expected: x / 255.")
        if x.dim() != 4 or x.shape[1] != self.mean.shape[1]:
            expected = f"(batch, {self.mean.shape[1]}, height, width)"
            raise ValueError(f"images of shape {tuple(x.shape)} were given; {expected} is expected.")
        return (x - self.mean) / self.std

    def extra_repr(self) -> str:
        """The constants."""
        return f"mean={self.mean.flatten().tolist()}, std={self.std.flatten().tolist()}"


class Normalised(nn.Module):
    """Somebody else's model, which expects normalised images, as one that takes images in [0, 1]."""

    def __init__(
        self,
        model: nn.Module,
        mean: Constants = IMAGENET_MEAN,
        std: Constants = IMAGENET_STD,
        channels: int = 3,
    ) -> None:
        super().__init__()
        self.normalise = Normalise(mean, std, channels)
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """The logits of one batch."""
        logits: Tensor = self.model(self.normalise(x))
        return logits


def _constants(name: str, given: Constants, channels: int) -> Tensor:
    values = torch.as_tensor(given, dtype=torch.get_default_dtype()).flatten()
    if values.numel() not in (1, channels):
        raise ValueError(
            f"{name}={given!r} has {values.numel()} values for channels={channels}; give {name}= one value per channel,"
            " or one for all."
        )
    return values.expand(channels).reshape(1, channels, 1, 1).clone()
