"""Models of torchvision and timm, and functions of a user's own."""

import sys
import types

import pytest
import torch
from torch import nn

import medbn
from medbn import models


class Tiny(nn.Module):
    def __init__(self, classes=1000, channels=3):
        super().__init__()
        self.layer1 = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))
        self.layer2 = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))
        self.fc = nn.Linear(4, classes)

    def forward(self, x):
        return self.fc(self.layer2(self.layer1(x)).mean((2, 3)))


@pytest.fixture
def calls(monkeypatch):
    """Replace torchvision and timm by modules that record how they are called."""
    recorded = []

    def get_model(name, *, weights=None, num_classes=1000):
        recorded.append(("torchvision", name, weights, num_classes))
        return Tiny(num_classes)

    def create_model(name, *, pretrained=False, num_classes=1000, in_chans=3):
        recorded.append(("timm", name, pretrained, num_classes, in_chans))
        model = Tiny(num_classes, in_chans)
        if name == "vit":
            model.pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25), "num_classes": 1000}
        return model

    torchvision, timm = types.ModuleType("torchvision"), types.ModuleType("timm")
    torchvision.models = types.ModuleType("torchvision.models")
    torchvision.models.get_model, timm.create_model = get_model, create_model
    monkeypatch.setitem(sys.modules, "torchvision", torchvision)
    monkeypatch.setitem(sys.modules, "torchvision.models", torchvision.models)
    monkeypatch.setitem(sys.modules, "timm", timm)
    return recorded


def normalise_and_call(model, x, mean, std):
    return model.model(torch.stack([(x[:, c] - mean[c]) / std[c] for c in range(3)], dim=1))


@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_library_models_are_normalised_and_in_eval_mode(library, calls):
    model = models.get(f"{library}:resnet50", classes=5)
    assert calls == [
        ("torchvision", "resnet50", None, 5) if library == "torchvision" else ("timm", "resnet50", False, 5, 3)
    ]
    assert not model.training
    x = torch.rand(2, 3, 16, 16)
    torch.testing.assert_close(model(x), normalise_and_call(model, x, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    assert all(name.startswith("model.") for name in model.state_dict())


def test_default_weights_are_the_librarys(calls):
    models.get("torchvision:resnet50", weights="default")
    models.get("timm:resnet50", weights="default")
    assert calls == [("torchvision", "resnet50", "DEFAULT", 1000), ("timm", "resnet50", True, 1000, 3)]


def test_timms_constants_are_used_unless_others_are_given(calls):
    x = torch.rand(2, 3, 16, 16)
    model = models.get("timm:vit")
    torch.testing.assert_close(model(x), normalise_and_call(model, x, [0.5] * 3, [0.25] * 3))
    model = models.get("timm:vit", mean=0.0, std=1.0)
    torch.testing.assert_close(model(x), model.model(x))


def test_an_untrained_classifier_on_default_weights_is_refused(calls):
    with pytest.raises(ValueError, match="1000 classes"):
        models.get("timm:vit", classes=10, weights="default")
    assert models.get("timm:vit", classes=1000, weights="default")


def test_channels_of_library_models(calls):
    assert models.get("timm:resnet50", channels=1)(torch.rand(2, 1, 16, 16)).shape == (2, 1000)
    assert models.get("timm:vit", channels=1).normalise.mean.shape == (1, 1, 1, 1)
    with pytest.raises(ValueError, match="channels=1"):
        models.get("torchvision:resnet50", channels=1)


def test_sar_finds_the_stages_of_library_models(calls):
    tta = medbn.adapt(models.get("timm:resnet50"), "sar", "mean")
    learned = {n for n, p in tta.model.named_parameters() if p.requires_grad}
    assert learned == {f"model.layer1.{i}.{p}" for i in (1, 3) for p in ("weight", "bias")}


@pytest.mark.parametrize("prefix", ["", "model."])
def test_weights_of_the_bare_model_load_into_the_normalised_one(prefix, calls, tmp_path):
    bare = Tiny(5)
    torch.save({prefix + k: v for k, v in bare.state_dict().items()}, tmp_path / "weights.pt")
    model = models.get("timm:resnet50", classes=5, weights=tmp_path / "weights.pt")
    assert models.fingerprint(model.model) == models.fingerprint(bare)


@pytest.mark.parametrize("library", ["torchvision", "timm"])
@pytest.mark.parametrize("fault", [None, RuntimeError("operator torchvision::nms does not exist")])
def test_without_the_library_the_error_names_the_extra(library, fault, monkeypatch):
    if fault is None:
        monkeypatch.setitem(sys.modules, library, None)
    else:

        def fail(name):
            raise fault

        monkeypatch.setattr("medbn.models.external.importlib.import_module", fail)
    with pytest.raises(ImportError, match=rf"{library}.*medbn\[vision\]"):
        models.get(f"{library}:resnet50")


@pytest.fixture
def user_module(monkeypatch):
    module = types.ModuleType("my_models")
    module.tiny = Tiny
    module.wrong = lambda: "a string"
    module.number = 3
    monkeypatch.setitem(sys.modules, "my_models", module)
    return module


def test_a_users_function_gets_the_options(user_module, tmp_path):
    model = models.get("my_models:tiny", classes=4, channels=2)
    assert model(torch.rand(2, 2, 16, 16)).shape == (2, 4)
    assert not model.training
    assert models.get("my_models:tiny").fc.out_features == 1000  # what is not given is left to the function
    torch.save(model.state_dict(), tmp_path / "mine.pt")
    again = models.get("my_models:tiny", classes=4, channels=2, weights=str(tmp_path / "mine.pt"))
    assert models.fingerprint(again) == models.fingerprint(model)


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("my_models:wrong", TypeError, "returned a str"),
        ("my_models:missing", ValueError, "missing"),
        ("my_models:number", ValueError, "number"),
        ("no_such_module:f", ValueError, "no_such_module"),
        ("resnet26:", ValueError, "'resnet26:'"),
        ("resnet62", ValueError, "'resnet26'"),
        (26, ValueError, "resnet26, "),
    ],
)
def test_wrong_names_are_explained(name, kind, words, user_module):
    with pytest.raises(kind, match=words):
        models.get(name)


def test_a_module_with_a_failing_import_raises_its_own_error(monkeypatch, tmp_path):
    (tmp_path / "leaning.py").write_text("import not_installed_anywhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        models.get("leaning:f")
