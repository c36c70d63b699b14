from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ..seeds import seed_torch


class Block(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.skip = nn.Identity() if before == after else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x):
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + self.skip(x)).relu()


class SmallResNet(nn.Module):
    """Three stages, ten classes, in plain torch."""

    def __init__(self, channels=1, width=8, scale=1.0):
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 3, 1, 1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.layer1 = nn.Sequential(Block(width, width, 1))
        self.layer2 = nn.Sequential(Block(width, 2 * width, 2))
        self.layer3 = nn.Sequential(Block(2 * width, 4 * width, 2))
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(4 * width, 10)
        self.scale = scale

    def features(self, x):
        return self.layer3(self.layer2(self.layer1(self.bn(self.conv(x)).relu())))

    def forward(self, x):
        return self.scale * self.fc(self.drop(self.features(x).mean(dim=(2, 3))))


def small_model(**options):
    """An untrained model with random source statistics and logits that differ between images."""
    seed_torch(1)
    model = SmallResNet(**{"channels": 3, "width": 4, "scale": 4.0} | options)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.3)
            module.running_var.uniform_(0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
    return model.eval()


class Dense(nn.Module):
    """The small model without its pooling: ten classes per pixel."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        y = self.model.features(x)
        return 4 * self.model.fc(y.movedim(1, -1)).movedim(-1, 1)


class Waiting(nn.Module):
    """Waits for the GPU in its forward pass."""

    def __init__(self):
        super().__init__()
        self.inner = small_model()

    def forward(self, x):
        return self.inner(x) * (2.0 if bool((x > 0).any()) else 1.0)


@pytest.fixture
def model():
    return small_model()


@pytest.fixture
def batches():
    g = torch.Generator().manual_seed(5)
    return [torch.randn(12, 3, 8, 8, generator=g) + 0.5 for _ in range(5)]


class Digits(NamedTuple):
    model: nn.Module
    source: torch.Tensor
    clean: torch.Tensor
    corrupted: torch.Tensor
    labels: torch.Tensor


@pytest.fixture(scope="session")
def digits():
    """scikit-learn's handwritten digits at 16×16: a trained model, and test images of low contrast with noise."""
    data = pytest.importorskip("sklearn.datasets").load_digits()
    images = torch.from_numpy(data.images).float().unsqueeze(1) / 16
    images = F.interpolate(images, size=16, mode="bilinear", align_corners=False)
    labels = torch.from_numpy(data.target).long()
    g = torch.Generator().manual_seed(0)
    order = torch.randperm(len(images), generator=g)
    train, test = order[:1000], order[1000:]

    torch.manual_seed(0)
    model = SmallResNet(width=8)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(12):
        for batch in train[torch.randperm(len(train), generator=g)].split(100):
            optimizer.zero_grad()
            F.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    corrupted = 0.35 * images[test] + 0.4 + 0.05 * torch.randn(images[test].shape, generator=g)
    return Digits(model.eval(), images[train], images[test], corrupted.clamp(0, 1), labels[test])
