"""ResNets for large images (He et al., 2016), with torchvision's names, options for other weights, and dilated stages.

``resnet50`` and ``resnet101`` classify. Without their classifier they are the backbones of ``deeplabv3plus.py``.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from .input_normalisation import IMAGENET_MEAN, IMAGENET_STD, Constants, InputNormalisation
from .registry import register
from .resnet import initialise

BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
"""The number of blocks of each stage, by depth."""
WIDTHS = (64, 128, 256, 512)
EXPANSION = 4
"""The output of a block has this many times the channels of its 3×3 convolution."""
LOW_CHANNELS, HIGH_CHANNELS = EXPANSION * WIDTHS[0], EXPANSION * WIDTHS[-1]


class Variant(NamedTuple):
    """What differs between published weights of the same network.

    Args:
        stride_in_1x1: whether a block strides in its first 1×1 convolution, as in the paper and in Keras, and not in
            its 3×3 convolution, as in torchvision.
        eps: of the BatchNorm layers; 1e-5 in torchvision, 1e-3 in Keras.
    """

    stride_in_1x1: bool = False
    eps: float = 1e-5


class Bottleneck(nn.Module):
    """A 3×3 convolution between two 1×1 convolutions, beside a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int, dilation: int, variant: Variant) -> None:
        super().__init__()
        stride_in_1x1, eps = variant
        first, second = (stride, 1) if stride_in_1x1 else (1, stride)
        outputs = EXPANSION * width
        self.conv1 = nn.Conv2d(inputs, width, 1, first, bias=False)
        self.bn1 = nn.BatchNorm2d(width, eps)
        self.conv2 = nn.Conv2d(width, width, 3, second, padding=dilation, dilation=dilation, bias=False)
        self.bn2 = nn.BatchNorm2d(width, eps)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs, eps)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(outputs, eps))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's activations."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + (x if self.downsample is None else self.downsample(x)))


class Backbone(nn.Module):
    """A ResNet without its classifier: a 7×7 stem, max-pooling, and the stages ``layer1`` to ``layer4``.

    Args:
        depth: 50 or 101.
        channels: the number of channels of the images.
        output_stride: 32; or 16 or 8, for which the last stages dilate instead of striding. As in torchvision, the
            first block of such a stage has the dilation of the stage before it.
        variant: of the blocks.
    """

    def __init__(self, depth: int, channels: int = 3, output_stride: int = 32, variant: Variant | None = None) -> None:
        super().__init__()
        if output_stride not in (8, 16, 32):
            raise ValueError(f"output_stride={output_stride!r}: expected 8, 16 or 32.")
        variant = variant or Variant()
        strides = [stride if 4 * total <= output_stride else 1 for stride, total in ((1, 1), (2, 2), (2, 4), (2, 8))]
        dilations = [1, 1, max(1, 16 // output_stride), max(1, 32 // output_stride)]

        def stage(index: int) -> nn.Sequential:
            width, stride, dilation = WIDTHS[index], strides[index], dilations[index]
            inputs = 64 if index == 0 else EXPANSION * WIDTHS[index - 1]
            first = Bottleneck(inputs, width, stride, dilations[max(0, index - 1)], variant)
            later = (
                Bottleneck(EXPANSION * width, width, 1, dilation, variant) for _ in range(BLOCKS[depth][index] - 1)
            )
            return nn.Sequential(first, *later)

        self.conv1 = nn.Conv2d(channels, 64, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64, variant.eps)
        self.layer1, self.layer2, self.layer3, self.layer4 = (stage(index) for index in range(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the activations of ``layer1``, at a quarter of the resolution, and of ``layer4``."""
        low: Tensor = self.layer1(F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, padding=1))
        high: Tensor = self.layer4(self.layer3(self.layer2(low)))
        return low, high


class BottleneckResNet(Backbone):
    """A backbone, the average over positions, and a classifier, for images in [0, 1].

    Args:
        depth: 50 or 101.
        classes: the number of logits.
        channels: the number of channels of the images.
        variant: of the blocks.
        mean: what is subtracted from images in [0, 1], per channel or one for all.
        std: what the result is divided by, likewise.
    """

    def __init__(
        self, depth: int, classes: int, channels: int, variant: Variant, mean: Constants, std: Constants
    ) -> None:
        super().__init__(depth, channels, variant=variant)
        self.variant, self.settings = variant, variant._asdict()
        self.normalise = InputNormalisation(mean, std, channels)
        self.fc = nn.Linear(HIGH_CHANNELS, classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Return the logits of images in [0, 1]."""
        _, high = super().forward(self.normalise(x))
        logits: Tensor = self.fc(high.mean(dim=(2, 3)))
        return logits


@register("resnet50")
def resnet50(
    *,
    classes: int = 1000,
    channels: int = 3,
    stride_in_1x1: bool = False,
    eps: float = 1e-5,
    mean: Constants = IMAGENET_MEAN,
    std: Constants = IMAGENET_STD,
) -> BottleneckResNet:
    """Return ResNet-50 for ImageNet, 25.6 million parameters."""
    return BottleneckResNet(50, classes, channels, Variant(stride_in_1x1, eps), mean, std)


@register("resnet101")
def resnet101(
    *,
    classes: int = 1000,
    channels: int = 3,
    stride_in_1x1: bool = False,
    eps: float = 1e-5,
    mean: Constants = IMAGENET_MEAN,
    std: Constants = IMAGENET_STD,
) -> BottleneckResNet:
    """Return ResNet-101 for ImageNet, 44.5 million parameters."""
    return BottleneckResNet(101, classes, channels, Variant(stride_in_1x1, eps), mean, std)
