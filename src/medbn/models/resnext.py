"""ResNeXt for small images (Xie et al., 2017), under the names that RobustBench's AugMix checkpoints use.

RobustBench's ``Hendrycks2020AugMix_ResNeXt`` is depth 29, cardinality 4, base width 32, mean and std 0.5.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from .input_normalisation import Constants, InputNormalisation
from .registry import register
from .resnet import initialise

EXPANSION = 4


class Bottleneck(nn.Module):
    """A 1×1, a grouped 3×3 and a 1×1 convolution beside a shortcut: the paper's form C, one group per path."""

    def __init__(self, inputs: int, planes: int, stride: int, cardinality: int, base_width: int) -> None:
        super().__init__()
        inner, outputs = planes * base_width // 64 * cardinality, planes * EXPANSION
        self.conv_reduce = nn.Conv2d(inputs, inner, 1, bias=False)
        self.bn_reduce = nn.BatchNorm2d(inner)
        self.conv_conv = nn.Conv2d(inner, inner, 3, stride, padding=1, groups=cardinality, bias=False)
        self.bn = nn.BatchNorm2d(inner)
        self.conv_expand = nn.Conv2d(inner, outputs, 1, bias=False)
        self.bn_expand = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's activations."""
        y = F.relu(self.bn_reduce(self.conv_reduce(x)))
        y = F.relu(self.bn(self.conv_conv(y)))
        y = self.bn_expand(self.conv_expand(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNeXt(nn.Module):
    """A ResNeXt with stages ``stage_1`` to ``stage_3`` of ``(depth − 2) / 9`` bottlenecks of 64, 128 and 256 planes.

    Args:
        depth: the number of convolutions on the longest path.
        cardinality: the number of paths of a bottleneck.
        base_width: the width of a path in the first stage.
        classes: as in ``ResNet``, likewise ``channels``, ``mean`` and ``std``.
    """

    def __init__(
        self,
        depth: int = 29,
        cardinality: int = 4,
        base_width: int = 32,
        *,
        classes: int = 10,
        channels: int = 3,
        mean: Constants = 0.5,
        std: Constants = 0.5,
    ) -> None:
        super().__init__()
        count, rest = divmod(depth - 2, 9)
        if count < 1 or rest:
            raise ValueError(f"depth={depth} is not a depth of a ResNeXt: expected 9n + 2, such as 11, 20 or 29.")

        def stage(inputs: int, planes: int, stride: int) -> nn.Sequential:
            later = [Bottleneck(planes * EXPANSION, planes, 1, cardinality, base_width) for _ in range(count - 1)]
            return nn.Sequential(Bottleneck(inputs, planes, stride, cardinality, base_width), *later)

        self.normalise = InputNormalisation(mean, std, channels)
        self.conv_1_3x3 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        self.bn_1 = nn.BatchNorm2d(64)
        self.stage_1 = stage(64, 64, 1)
        self.stage_2 = stage(64 * EXPANSION, 128, 2)
        self.stage_3 = stage(128 * EXPANSION, 256, 2)
        self.classifier = nn.Linear(256 * EXPANSION, classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images in [0, 1]."""
        x = F.relu(self.bn_1(self.conv_1_3x3(self.normalise(x))))
        x = self.stage_3(self.stage_2(self.stage_1(x)))
        logits: Tensor = self.classifier(x.mean(dim=(2, 3)))
        return logits


@register("resnext29")
def resnext29(*, classes: int = 10, channels: int = 3, mean: Constants = 0.5, std: Constants = 0.5) -> ResNeXt:
    """Return ResNeXt-29 with 4 paths of width 32, 6.8 million parameters."""
    return ResNeXt(29, 4, 32, classes=classes, channels=channels, mean=mean, std=std)
