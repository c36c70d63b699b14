"""Options, presets and wrong names."""

import pytest
import torch
from torch import nn

import medbn

from .table import every_method


@pytest.mark.parametrize(
    ("method", "preset", "expected"),
    [
        ("tent", "cifar10", {"optimizer": "adam", "lr": 1e-3, "weight_decay": 0.0, "steps": 1, "predict": "before"}),
        ("eta", "cifar10", {"margin": 0.4, "redundancy": 0.4}),
        ("eta", "cifar100", {"margin": 0.4, "redundancy": 0.4}),
        ("eta", "imagenet", {"margin": 0.4, "redundancy": 0.05}),
        ("eata", "cifar10", {"fisher_weight": 1.0, "fisher_samples": 2000, "redundancy": 0.4}),
        ("eata", "imagenet", {"fisher_weight": 2000.0, "redundancy": 0.05}),
        ("sar", "cifar10", {"margin": 0.4, "rho": 0.05, "recovery": 0.0, "average": 0.9}),
        ("sar", "cifar100", {"recovery": 0.0}),
        ("sar", "imagenet", {"recovery": 0.2}),
        ("sotta", "cifar10", {"capacity": 64, "confidence": 0.99, "momentum": 0.2, "statistics": "both"}),
        ("sotta", "cifar100", {"confidence": 0.66}),
        ("sotta", "imagenet", {"confidence": 0.33}),
        ("sema", "cifar10", {"momentum": 0.2}),
        ("mdia", "cifar10", {"prior": 0.6, "terminal": 8}),
        ("alpha_bn", "cifar10", {"prior": 0.9, "source_images": None}),
        ("lame", "cifar10", {"neighbours": 5, "weight": 1.0, "iterations": 100}),
        ("cotta", "cifar10", {"average": 0.999, "augmentations": 32, "threshold": 0.92, "restored": 0.01, "lr": 1e-3}),
        ("cotta", "cifar100", {"threshold": 0.72, "restored": 0.01}),
        ("cotta", "imagenet", {"threshold": 0.1, "restored": 0.001, "optimizer": "nesterov", "lr": 0.01}),
        ("rotta", "cifar10", {"capacity": 64, "frequency": 64, "momentum": 0.05, "average": 0.999, "lr": 1e-3}),
        ("rotta", "cifar10", {"timeliness": 1.0, "certainty": 1.0}),
        ("deyo", "cifar10", {"margin": 0.5, "weight_margin": 0.4, "plpd": 0.2, "patches": 4, "lr": 1e-3}),
        ("deyo", "imagenet", {"plpd": 0.3, "optimizer": "momentum", "lr": 2.5e-4}),
        (
            "roid",
            "cifar10",
            {"ensembling": 0.99, "average": 0.9, "temperature": 1 / 3, "consistency": True, "lr": 1e-3},
        ),
        ("roid", "imagenet", {"optimizer": "nesterov", "lr": 2.5e-4}),
        ("note", "cifar10", {"width": 4.0, "capacity": 64, "frequency": 64, "momentum": 0.01, "lr": 1e-4}),
    ],
)
def test_published_defaults(method, preset, expected):
    options = medbn.methods.options(method, preset)
    assert {name: options[name] for name in expected} == expected


@every_method
def test_every_option_is_explained(method):
    options = medbn.methods.options(method)
    assert set(options.about) == set(options)
    assert all(len(text) > 15 and text.endswith(".") for text in options.about.values()), options.about
    printed = str(options)
    assert all(f"{name} = {value!r}" in printed for name, value in options.items() if len(repr(value)) < 40)


def test_an_explanation_says_where_a_value_comes_from():
    printed = str(medbn.methods.options("roid", "imagenet"))
    assert "ensembling = 0.99: α; 0.99 in ROID's paper." in printed
    assert "lr = 0.00025: 1e-3 in the MedBN paper." in printed


def test_presets_and_given_options(model):
    assert medbn.adapt(model, "sotta", preset="imagenet").confidence == 0.33
    assert medbn.adapt(model, "sotta", preset="imagenet", confidence=0.5).confidence == 0.5
    assert medbn.adapt(model, "SoTTA").confidence == 0.99
    sgd = medbn.adapt(model, "tent", optimizer=lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9), lr=0.5)
    assert isinstance(sgd.optimizer, torch.optim.SGD)
    assert sgd.optimizer.param_groups[0]["lr"] == 0.5


def test_wrong_names_list_the_right_ones(model):
    with pytest.raises(ValueError, match=r"tnet.*tent.*eata, eta.*past.*sar"):
        medbn.adapt(model, "tnet")
    with pytest.raises(ValueError, match=r"learning_rate.*lr"):
        medbn.adapt(model, "tent", learning_rate=0.1)
    with pytest.raises(ValueError, match=r"cifar.*cifar10, cifar100, imagenet"):
        medbn.adapt(model, "tent", preset="cifar")
    with pytest.raises(ValueError, match="medain"):
        medbn.adapt(model, "tent", "medain")
    with pytest.raises(ValueError, match=r"later.*after, before"):
        medbn.adapt(model, "tent", predict="later")
    with pytest.raises(ValueError, match=r"adamm.*adam, momentum, nesterov, sgd"):
        medbn.adapt(model, "tent", optimizer="adamm")
    with pytest.raises(ValueError, match=r"mine.*batch, both, memory"):
        medbn.adapt(model, "sotta", statistics="mine")
    with pytest.raises(ValueError, match=r"steps.*0"):
        medbn.adapt(model, "tent", steps=0)
    with pytest.raises(ValueError, match=r"source=.*'eta'"):
        medbn.adapt(model, "eata")
    with pytest.raises(TypeError, match=r"Module.*dict"):
        medbn.adapt({}, "tent")
    with pytest.raises(TypeError, match=r"TeBN.*tta\.model"):
        medbn.adapt(nn.Sequential(medbn.adapt(model, "tebn")), "tent")
    assert not any(isinstance(m, medbn.RobustBatchNorm) for m in model.modules())


def test_a_model_with_nothing_to_learn():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False))
    with pytest.raises(ValueError, match=r"affine.*Tent"):
        medbn.adapt(model, "tent")
