"""ResNets for small images (He et al., 2016): a 3×3 stem, no max-pooling, 1×1 convolutions in shortcuts that need them.

``resnet26`` is the model of the paper's CIFAR-10 experiments; ``resnet-small`` trains on a laptop in a minute.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from .input_normalisation import Constants, InputNormalisation
from .registry import register

CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_STD = (0.2023, 0.1994, 0.2010)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut, which is a 1×1 convolution where the shape changes (option B)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != width:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's activations."""
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """A ResNet with stages ``layer1``, ``layer2``, ... of basic blocks; each but the first halves the resolution.

    Args:
        blocks: the number of blocks of each stage.
        widths: the number of channels of each stage.
        classes: the number of logits.
        channels: the number of channels of the images.
        mean: what is subtracted from images in [0, 1], per channel or one for all.
        std: what the result is divided by, likewise.
    """

    def __init__(
        self,
        blocks: Sequence[int],
        widths: Sequence[int],
        *,
        classes: int = 10,
        channels: int = 3,
        mean: Constants = 0.5,
        std: Constants = 0.5,
    ) -> None:
        super().__init__()
        self.normalise = InputNormalisation(mean, std, channels)
        self.conv1 = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.stages: list[str] = []
        inputs = widths[0]
        for index, (count, width) in enumerate(zip(blocks, widths, strict=True)):
            strides = [1 if index == 0 else 2] + [1] * (count - 1)
            stage = [BasicBlock(inputs if i == 0 else width, width, stride) for i, stride in enumerate(strides)]
            self.stages.append(f"layer{index + 1}")
            self.add_module(self.stages[-1], nn.Sequential(*stage))
            inputs = width
        self.linear = nn.Linear(inputs, classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images in [0, 1]."""
        x = F.relu(self.bn1(self.conv1(self.normalise(x))))
        for name in self.stages:
            x = self.get_submodule(name)(x)
        logits: Tensor = self.linear(x.mean(dim=(2, 3)))
        return logits


def initialise(model: nn.Module) -> None:
    """Initialise every convolution as He et al. do, by its outputs; other layers keep torch's initialisation."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


@register("resnet-small")
def resnet_small(*, classes: int = 10, channels: int = 3, mean: Constants = 0.5, std: Constants = 0.5) -> ResNet:
    """Return a ResNet of three stages of one block each, 78 thousand parameters, for 16-pixel digits."""
    return ResNet((1, 1, 1), (16, 32, 64), classes=classes, channels=channels, mean=mean, std=std)


@register("resnet26")
def resnet26(
    *, classes: int = 10, channels: int = 3, mean: Constants = CIFAR_MEAN, std: Constants = CIFAR_STD
) -> ResNet:
    """Return ResNet-26 for 32-pixel images, 17.4 million parameters; mean and std are CIFAR-10's by default."""
    return ResNet((3, 3, 3, 3), (64, 128, 256, 512), classes=classes, channels=channels, mean=mean, std=std)
