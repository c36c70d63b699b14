"""Common mistakes: the message says what to do, in the words of this package."""

from __future__ import annotations

import contextlib
import math
import re

import pytest
import torch
from torch import nn

import medbn

from ..seeds import seed_torch
from .table import each_kind, make


def network(channels: int = 3) -> nn.Sequential:
    seed_torch(0)
    return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))


@each_kind
def test_options_of_another_type_are_refused_when_the_adapter_is_made(method):
    numbers = {n: v for n, v in medbn.methods.options(method).items() if isinstance(v, bool | int | float)}
    assert {"seed", "min_images", "lock"} <= set(numbers)
    for option, default in numbers.items():
        wrongs = ["0.1", None, math.nan, [1], 0.5 if isinstance(default, bool) else True]
        if option == "past_momentum":
            wrongs.remove(None)  # statistics of the batch
        for wrong in wrongs:
            with pytest.raises(TypeError, match=rf"^{option} .*{re.escape(repr(wrong))}"):
                make(network(), method, **{option: wrong})


def test_an_option_without_annotation_has_the_type_of_its_default():
    class Own(medbn.methods.Adapter):
        def __init__(self, model, *, count=1, flag=False, name="a", **options):
            super().__init__(model, **options)
            self.values = count, flag, name

    assert Own(network(), count=0.5, flag=True, name=3).values == (0.5, True, 3)
    for wrong in ({"count": "1"}, {"flag": 1}, {"seed": 0.5}):
        with pytest.raises(TypeError, match=next(iter(wrong))):
            Own(network(), **wrong)


@pytest.mark.parametrize("images", [0, 4])
def test_alpha_bn_that_counts_no_source_image(images):
    tta = medbn.adapt(network(), "alpha_bn", "mean", source_images=0)
    tebn = medbn.adapt(network(), "tebn", "mean")
    x = torch.rand(4, 3, 8, 8)
    torch.testing.assert_close(tta(x), tebn(x))
    x[images:] = math.nan
    with pytest.raises(ValueError, match="finite") if not images else contextlib.nullcontext():
        tta(x)


def test_other_names_of_options_are_recognised():
    with pytest.raises(ValueError, match="Did you mean 'estimator'"):
        medbn.adapt(network(), "tent", estimators="median")
    with pytest.raises(ValueError, match="Did you mean 'lr'"):
        medbn.adapt(network(), "tent", learning_rate=0.1)


def test_arguments_that_are_not_true_or_false():
    for name in ("fuse", "inplace"):
        with pytest.raises(TypeError, match=f"^{name} .*'no'"):
            medbn.adapt(network(), **{name: "no"})
    for name in ("fuse", "exportable"):
        with pytest.raises(TypeError, match=f"^{name} .*'no'"):
            medbn.convert(network(), **{name: "no"})


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
