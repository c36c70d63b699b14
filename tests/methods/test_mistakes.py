"""Common mistakes: the message says what to do, in the words of this package."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import medbn


def network(channels: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))


@pytest.mark.parametrize("option", ["lr", "weight_decay"])
def test_a_number_that_is_a_string(option):
    with pytest.raises(TypeError, match=rf"{option}.*'0\.1'"):
        medbn.adapt(network(), "tent", **{option: "0.1"})


def test_another_name_of_the_learning_rate_is_recognised():
    with pytest.raises(ValueError, match="Did you mean 'lr'"):
        medbn.adapt(network(), "tent", learning_rate=0.1)


def test_lazy_layers():
    with pytest.raises(ValueError, match="lazy"):
        medbn.adapt(nn.Sequential(nn.LazyConv2d(3, 3), nn.BatchNorm2d(3)), "tebn")


@pytest.mark.parametrize("method", ["tebn", "tent"])
def test_images_of_bytes(method):
    images = torch.randint(0, 256, (6, 3, 8, 8), dtype=torch.uint8)
    with pytest.raises(TypeError, match="uint8"):
        medbn.adapt(network(), method)(images)


def trained_on(scale: float) -> nn.Sequential:
    """Return a network whose source statistics are those of images in [0, scale]."""
    model = network().train()
    model[1].momentum = None
    model(scale * torch.rand(64, 3, 8, 8))
    return model.eval()


def test_images_up_to_255_are_one_warning_where_the_source_images_were_not():
    images = 255 * torch.rand(16, 3, 8, 8)
    tta = medbn.adapt(trained_on(1), "tebn")
    with pytest.warns(UserWarning, match="255") as warned:
        [tta(images) for _ in range(2)]
    assert len(warned) == 1


@pytest.mark.filterwarnings("error")
def test_images_up_to_255_are_no_warning_where_the_source_images_were_so():
    medbn.adapt(trained_on(255), "tebn")(255 * torch.rand(16, 3, 8, 8))
    medbn.adapt(trained_on(1), "tebn")(torch.rand(16, 3, 8, 8))
