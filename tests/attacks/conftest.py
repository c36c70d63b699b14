import pytest
import torch
from torch import nn

from ..methods.conftest import Dense, small_model


@pytest.fixture
def model():
    return small_model()


@pytest.fixture
def stream():
    """Batches in [0, 1] with labels."""
    g = torch.Generator().manual_seed(5)
    return [(torch.rand(10, 3, 8, 8, generator=g), torch.randint(10, (10,), generator=g)) for _ in range(4)]


@pytest.fixture
def dense_model():
    return Dense(small_model())


@pytest.fixture
def dense_stream():
    g = torch.Generator().manual_seed(6)
    return [(torch.rand(6, 3, 8, 8, generator=g), torch.randint(10, (6, 2, 2), generator=g)) for _ in range(2)]


class Linear(nn.Module):
    """BatchNorm, then a linear classifier of two classes: the smallest model that can be attacked."""

    def __init__(self, features):
        super().__init__()
        self.bn = nn.BatchNorm1d(features, affine=False)
        self.fc = nn.Linear(features, 2)
        with torch.no_grad():
            self.fc.weight.copy_(torch.stack([torch.ones(features), -torch.ones(features)]))
            self.fc.bias.zero_()

    def forward(self, x):
        return self.fc(self.bn(x))
