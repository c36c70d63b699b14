"""DeepLabv3+ (Chen et al., ECCV 2018) on a dilated ResNet: the model of the paper's segmentation experiments.

The logits ``(B, classes, H, W)`` have the size of the images. The backbone has torchvision's names, so that ImageNet
weights load.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .bottleneck_resnet import HIGH_CHANNELS, LOW_CHANNELS, Backbone, BottleneckResNet, Variant
from .input_normalisation import IMAGENET_MEAN, IMAGENET_STD, Constants, InputNormalisation
from .interpolation import resize
from .registry import get, register
from .resnet import initialise

WIDTH = 256
SKIP_WIDTH = 48
"""The channels of the low-level skip; the paper's table 1."""
RATES = {16: (6, 12, 18), 8: (12, 24, 36)}
"""The dilations of ASPP's 3×3 convolutions, by output stride."""


def convolve(inputs: int, outputs: int, kernel: int, dilation: int = 1) -> nn.Sequential:
    """Return a convolution that keeps the size, a BatchNorm and a ReLU."""
    padding = dilation * (kernel // 2)
    convolution = nn.Conv2d(inputs, outputs, kernel, padding=padding, dilation=dilation, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


class ASPP(nn.Module):
    """Atrous spatial pyramid pooling: a 1×1 and three dilated convolutions beside the image's average.

    The BatchNorm of the average, ``pooling``, sees one value per channel and image.

    Args:
        inputs: the number of input channels.
        rates: the dilations.
        dropout: the share of values that are dropped in training.
    """

    def __init__(self, inputs: int, rates: tuple[int, ...], dropout: float) -> None:
        super().__init__()
        branches = [convolve(inputs, WIDTH, 1), *(convolve(inputs, WIDTH, 3, rate) for rate in rates)]
        self.branches = nn.ModuleList(branches)
        self.pooling = convolve(inputs, WIDTH, 1)
        self.project = convolve((len(branches) + 1) * WIDTH, WIDTH, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``WIDTH`` channels at the resolution of the input."""
        average: Tensor = self.pooling(x.mean(dim=(2, 3), keepdim=True))
        parts = [*(branch(x) for branch in self.branches), average.expand(-1, -1, *x.shape[2:])]
        y: Tensor = self.dropout(self.project(torch.cat(parts, dim=1)))
        return y


class Decoder(nn.Module):
    """Refine the output of ASPP with the backbone's low-level activations, and classify each position.

    Args:
        classes: the number of logits per position.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.skip = convolve(LOW_CHANNELS, SKIP_WIDTH, 1)
        self.refine = nn.Sequential(convolve(WIDTH + SKIP_WIDTH, WIDTH, 3), convolve(WIDTH, WIDTH, 3))
        self.classifier = nn.Conv2d(WIDTH, classes, 1)

    def forward(self, low: Tensor, x: Tensor) -> Tensor:
        """Return logits at the resolution of the low-level activations."""
        x = resize(x, *low.shape[2:])
        logits: Tensor = self.classifier(self.refine(torch.cat([x, self.skip(low)], dim=1)))
        return logits


class DeepLabV3Plus(nn.Module):
    """A dilated ResNet, ASPP, and a decoder with a skip from ``layer1``.

    As in the paper's ablation without Xception: plain convolutions, and no other dilations within a stage.

    SAR and SoTTA do not learn the last stage, which is ``decoder`` here. The terminal layers of mDIA are the last eight
    in this order: ``aspp.branches.1`` to ``3``, ``aspp.pooling``, ``aspp.project`` and ``decoder``.

    Args:
        classes: the number of logits per pixel.
        channels: the number of channels of the images.
        output_stride: 16 or 8; how much smaller the deepest activations are than the image.
        backbone_weights: a file of weights of the ResNet with this depth, such as ImageNet's; None for random ones.
            What the file says of its network replaces the defaults of the next four.
        stride_in_1x1: see ``medbn.models.bottleneck_resnet.Variant``.
        eps: of the backbone's BatchNorm layers; 1e-5 in all others.
        mean: what is subtracted from images in [0, 1], per channel or one for all; ImageNet's by default.
        std: what the result is divided by, likewise.
        dropout: after ASPP, in training.
    """

    depth: ClassVar[int]
    """Of the ResNet, 50 or 101."""

    def __init__(
        self,
        *,
        classes: int = 19,
        channels: int = 3,
        output_stride: int = 16,
        backbone_weights: str | Path | None = None,
        stride_in_1x1: bool | None = None,
        eps: float | None = None,
        mean: Constants | None = None,
        std: Constants | None = None,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        if output_stride not in RATES:
            raise ValueError(f"output_stride={output_stride!r}: expected 16 or 8.")
        options = {"stride_in_1x1": stride_in_1x1, "eps": eps, "mean": mean, "std": std}
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        resnet = None
        if backbone_weights is not None:
            resnet = get(f"resnet{self.depth}", channels=channels, weights=backbone_weights, **given)
            assert isinstance(resnet, BottleneckResNet)
            variant = resnet.variant
            mean, std = resnet.normalise.mean.flatten().tolist(), resnet.normalise.std.flatten().tolist()
        else:
            variant = Variant(**{name: given[name] for name in Variant._fields if name in given})
            mean, std = given.get("mean", IMAGENET_MEAN), given.get("std", IMAGENET_STD)
        self.settings = {"output_stride": output_stride, **variant._asdict()}
        self.normalise = InputNormalisation(mean, std, channels)
        self.backbone = Backbone(self.depth, channels, output_stride, variant)
        self.aspp = ASPP(HIGH_CHANNELS, RATES[output_stride], dropout)
        self.decoder = Decoder(classes)
        initialise(self)
        # He's initialisation of the classifier would begin with large logits.
        nn.init.normal_(self.decoder.classifier.weight, std=0.01)
        if resnet is not None:
            state = resnet.state_dict()
            self.backbone.load_state_dict({name: state[name] for name in self.backbone.state_dict()})

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits ``(B, classes, H, W)`` of images in [0, 1]."""
        low, high = self.backbone(self.normalise(x))
        return resize(self.decoder(low, self.aspp(high)), *x.shape[2:])


@register("deeplabv3plus-resnet50")
class DeepLabV3PlusResNet50(DeepLabV3Plus):
    """DeepLabv3+ on ResNet-50, 40.4 million parameters; for Cityscapes' 19 classes by default."""

    depth = 50


@register("deeplabv3plus-resnet101")
class DeepLabV3PlusResNet101(DeepLabV3Plus):
    """DeepLabv3+ on ResNet-101, 59.3 million parameters: the paper's model; for Cityscapes' 19 classes by default."""

    depth = 101
