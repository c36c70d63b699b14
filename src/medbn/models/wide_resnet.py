"""Wide residual networks (Zagoruyko & Komodakis, 2016), under the names that RobustBench's checkpoints use.

RobustBench's ``Standard`` for CIFAR-10 is WideResNet-28-10 on unnormalised images in [0, 1]: mean 0, std 1.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from .input_normalisation import Constants, InputNormalisation
from .registry import register
from .resnet import initialise


class WideBlock(nn.Module):
    """Normalise, activate and convolve, twice, beside a shortcut.

    Where the width changes, the shortcut is a 1×1 convolution that starts after the first activation.
    """

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.convShortcut = None if inputs == width else nn.Conv2d(inputs, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's activations."""
        active = F.relu(self.bn1(x))
        y: Tensor = self.conv2(F.relu(self.bn2(self.conv1(active))))
        return y + (x if self.convShortcut is None else self.convShortcut(active))


class WideStage(nn.Module):
    """A sequence of blocks, the first of which changes width and resolution."""

    def __init__(self, count: int, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        later = [WideBlock(width, width, 1) for _ in range(count - 1)]
        self.layer = nn.Sequential(WideBlock(inputs, width, stride), *later)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's activations."""
        y: Tensor = self.layer(x)
        return y


class WideResNet(nn.Module):
    """A wide ResNet with stages ``block1`` to ``block3`` of ``(depth − 4) / 6`` blocks each.

    Args:
        depth: the number of convolutions on the longest path.
        widen: by how much wider the stages are than 16, 32 and 64 channels.
        classes: as in ``ResNet``, likewise ``channels``, ``mean`` and ``std``.
    """

    def __init__(
        self,
        depth: int = 28,
        widen: int = 10,
        *,
        classes: int = 10,
        channels: int = 3,
        mean: Constants = 0.0,
        std: Constants = 1.0,
    ) -> None:
        super().__init__()
        count, rest = divmod(depth - 4, 6)
        if count < 1 or rest:
            raise ValueError(
                f"depth={depth} is not a depth of a wide ResNet: expected 6n + 4, such as 10, 16, 22 or 28."
            )
        self.normalise = InputNormalisation(mean, std, channels)
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.block1 = WideStage(count, 16, 16 * widen, 1)
        self.block2 = WideStage(count, 16 * widen, 32 * widen, 2)
        self.block3 = WideStage(count, 32 * widen, 64 * widen, 2)
        self.bn1 = nn.BatchNorm2d(64 * widen)
        self.fc = nn.Linear(64 * widen, classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images in [0, 1]."""
        x = self.block3(self.block2(self.block1(self.conv1(self.normalise(x)))))
        logits: Tensor = self.fc(F.relu(self.bn1(x)).mean(dim=(2, 3)))
        return logits


@register("wide-resnet-28-10")
def wide_resnet_28_10(
    *, classes: int = 10, channels: int = 3, mean: Constants = 0.0, std: Constants = 1.0
) -> WideResNet:
    """Return WideResNet-28-10, 36.5 million parameters."""
    return WideResNet(28, 10, classes=classes, channels=channels, mean=mean, std=std)
