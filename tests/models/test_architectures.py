"""The architectures against published names, shapes and counts, and against references in float64."""

import json
import warnings
from pathlib import Path

import pytest
import torch

import medbn
from medbn import models

from . import reference
from .reference import Net

# name -> parameters (the published counts: 36.5M, 6.8M), reference, mean, std, last stage
TABLE = {
    "resnet-small": (78_042, reference.resnet, [0.5] * 3, [0.5] * 3, "layer3."),
    "resnet26": (17_444_682, reference.resnet, [0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010], "layer4."),
    "resnext29": (6_807_882, reference.resnext, [0.5] * 3, [0.5] * 3, "stage_3."),
    "wide-resnet-28-10": (36_479_194, reference.wide_resnet, [0.0] * 3, [1.0] * 3, "block3."),
}
KEYS = {path.stem: json.loads(path.read_text()) for path in (Path(__file__).parent / "keys").glob("*.json")}


def mark_large(names):
    """Return names of models for a test, of which the fast tier leaves the largest out."""
    return [pytest.param(name, marks=pytest.mark.slow if name == "wide-resnet-28-10" else ()) for name in names]


every_model = pytest.mark.parametrize("name", mark_large(TABLE))


@pytest.fixture(scope="module")
def built():
    """A function that returns a model by name, built once; no test changes it."""
    cache = {}

    def get(name):
        if name not in cache:
            torch.manual_seed(1)
            cache[name] = randomise(models.get(name))
        return cache[name]

    return get


def randomise(model):
    """Give the model random statistics and affine parameters, and return it."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 2)
                module.weight.uniform_(0.5, 1.5)
                module.bias.normal_(0, 0.1)
    return model


def test_the_table_has_every_model():
    others = {"deeplabv3plus-resnet50", "deeplabv3plus-resnet101", "resnet50", "resnet101", "unet-small"}
    others |= {"vit-tiny", "vit-small"}
    # in test_segmentation_models.py and test_vision_transformer.py
    assert set(models.available()) == set(TABLE) | others
    assert sorted(KEYS) == ["resnet26", "resnext29", "wide-resnet-28-10"]


@every_model
def test_parameter_counts_are_the_published_ones(name, built):
    assert sum(parameter.numel() for parameter in built(name).parameters()) == TABLE[name][0]


@pytest.mark.parametrize("name", mark_large(KEYS))
def test_names_and_shapes_are_those_of_the_published_checkpoints(name, built):
    assert {key: list(value.shape) for key, value in built(name).state_dict().items()} == KEYS[name]


@every_model
def test_predictions_equal_the_references(name, built):
    _, forward, mean, std, _ = TABLE[name]
    model, x = built(name), torch.rand(2, 3, 8, 8)
    mean, std = torch.tensor(mean), torch.tensor(std)
    normalised = (x.double() - mean[:, None, None].double()) / std[:, None, None].double()
    with torch.no_grad():
        expected = forward(Net(model), normalised)
        assert expected.std() > 1e-3
        torch.testing.assert_close(model(x).double(), expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


@every_model
def test_models_are_in_eval_mode_and_a_forward_pass_changes_nothing(name, built):
    model = built(name)
    assert not any(module.training for module in model.modules())
    before = models.fingerprint(model)
    x = torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        y = model(x)
        assert torch.equal(model(x), y)
    assert models.fingerprint(model) == before


@pytest.mark.parametrize("name", ["resnet-small", "resnext29"])
def test_normalising_inside_is_normalising_outside(name, built):
    mean, std = [0.1, 0.2, 0.3], [0.5, 0.6, 0.7]
    inside = models.get(name, mean=mean, std=std)
    outside = models.get(name, mean=0, std=1)
    outside.load_state_dict(inside.state_dict())
    x = torch.rand(2, 3, 8, 8)
    by_hand = torch.stack([(x[:, c] - mean[c]) / std[c] for c in range(3)], dim=1)
    torch.testing.assert_close(inside(x), outside(by_hand))


@every_model
def test_gradients_reach_the_images_and_every_parameter(name, built):
    model, x = built(name), torch.rand(2, 3, 8, 8, requires_grad=True)
    loss = model(x).square().sum()
    gradients = torch.autograd.grad(loss, [x, *model.parameters()])
    assert all(g.isfinite().all() and g.abs().sum() > 0 for g in gradients)


def test_the_images_gradient_is_the_derivative():
    model, step = randomise(models.get("resnet-small")).double(), 1e-6
    x = torch.rand(1, 3, 8, 8, dtype=torch.float64, requires_grad=True)
    loss = model(x).sum()
    (slope,) = torch.autograd.grad(loss, x)
    moved = model(x + step * slope).sum() - loss
    torch.testing.assert_close(moved / step, slope.square().sum(), rtol=1e-3, atol=0)


def test_any_resolution_channels_and_classes():
    model = models.get("resnet-small", channels=1, classes=7)
    assert model(torch.rand(3, 1, 16, 16)).shape == (3, 7)
    assert model(torch.rand(3, 1, 9, 13)).shape == (3, 7)
    assert models.get("resnet26", channels=1, mean=0.5, std=0.5)(torch.rand(1, 1, 8, 8)).shape == (1, 10)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), "255"),
        (torch.zeros(2, 1, 8, 8), "3, height, width"),
        (torch.zeros(3, 8, 8), r"\(3, 8, 8\)"),
    ],
)
def test_images_of_a_wrong_type_or_shape_are_refused(x, words):
    with pytest.raises((TypeError, ValueError), match=words):
        models.get("resnet-small")(x)


@pytest.mark.parametrize(
    ("constants", "words"),
    [
        ({"mean": [0.5, 0.5]}, "2 values for channels=3"),
        ({"std": [0.5, 0.5, 0.0]}, "must be positive"),
        ({"std": float("nan")}, "must be positive"),
    ],
)
def test_wrong_constants_are_refused(constants, words):
    with pytest.raises(ValueError, match=words):
        models.get("resnet-small", **constants)


def test_depths_that_do_not_exist_are_refused():
    from medbn.models.resnext import ResNeXt
    from medbn.models.wide_resnet import WideResNet

    with pytest.raises(ValueError, match="6n"):
        WideResNet(depth=30)
    with pytest.raises(ValueError, match="9n"):
        ResNeXt(depth=28)


@every_model
def test_sar_finds_the_last_stage(name, built):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a model without stages is warned about
        tta = medbn.adapt(built(name), "sar", "mean")
    norms = [key for key, module in tta.model.named_modules() if isinstance(module, medbn.RobustBatchNorm)]
    learned = {key.rpartition(".")[0] for key, p in tta.model.named_parameters() if p.requires_grad}
    last = TABLE[name][4]
    after = {"bn1"} if name.startswith("wide") else set()  # the norm in front of the classifier comes after the stages
    assert set(norms) - learned == {key for key in norms if key.startswith(last)} | after
    assert learned
