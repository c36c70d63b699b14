"""A small U-Net (Ronneberger et al., 2015), which learns to segment small scenes on a laptop in minutes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .input_normalisation import Constants, InputNormalisation
from .interpolation import resize
from .registry import register
from .resnet import initialise


class UNet(nn.Module):
    """An encoder whose stages each halve the resolution, and a decoder that restores it with the encoder's activations.

    Its first convolution strides, and its logits are interpolated to the size of the images: a quarter of the work.

    Args:
        widths: the number of channels of each stage.
        classes: the number of logits per pixel.
        channels: the number of channels of the images.
        mean: what is subtracted from images in [0, 1], per channel or one for all.
        std: what the result is divided by, likewise.
    """

    def __init__(self, widths: Sequence[int], classes: int, channels: int, mean: Constants, std: Constants) -> None:
        super().__init__()
        self.normalise = InputNormalisation(mean, std, channels)
        self.stem = nn.Sequential(*_convolve(channels, widths[0], stride=2))
        inputs = [widths[0], *widths[:-1]]
        self.encoder = nn.ModuleList(_stage(before, width) for before, width in zip(inputs, widths, strict=True))
        pairs = zip(widths[:0:-1], widths[-2::-1], strict=True)
        self.decoder = nn.ModuleList(_stage(below + beside, beside) for below, beside in pairs)
        self.classifier = nn.Conv2d(widths[0], classes, 1)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits ``(B, classes, H, W)`` of images in [0, 1]."""
        size = x.shape[2:]
        x = self.stem(self.normalise(x))
        beside: list[Tensor] = []
        for index, stage in enumerate(self.encoder):
            x = stage(x if index == 0 else F.max_pool2d(x, 2))
            beside.append(x)
        beside.pop()
        for stage in self.decoder:
            skip = beside.pop()
            x = stage(torch.cat([resize(x, *skip.shape[2:]), skip], dim=1))
        return resize(self.classifier(x), *size)


def _stage(inputs: int, width: int) -> nn.Sequential:
    """Return two 3×3 convolutions, each with BatchNorm and ReLU."""
    return nn.Sequential(*_convolve(inputs, width), *_convolve(width, width))


def _convolve(inputs: int, width: int, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
    return [convolution, nn.BatchNorm2d(width), nn.ReLU()]


@register("unet-small")
def unet_small(*, classes: int = 13, channels: int = 3, mean: Constants = 0.5, std: Constants = 0.5) -> UNet:
    """Return a U-Net of three stages, 0.20 million parameters, for the dataset ``scenes``."""
    return UNet((24, 48, 64), classes, channels, mean, std)
