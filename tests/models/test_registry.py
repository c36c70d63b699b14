"""Models by name and their options, the shipped weights and users' own models."""

import pytest
from torch import nn

from medbn import models
from medbn.models import registry


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"meen": 0.5}, "meen.*'mean'"),
        ({"classes": 0}, "classes=0"),
        ({"channels": 1.5}, "channels=1.5"),
        ({"classes": True}, "classes=True"),
        ({"weights": "default"}, "timm:"),
    ],
)
def test_wrong_options_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        models.get("resnet-small", **options)


def test_shipped_weights(monkeypatch, tmp_path):
    monkeypatch.setattr(registry, "_weights_folder", lambda: tmp_path)
    with pytest.raises(ValueError, match=r"resnet-small.*none"):
        models.get("resnet-small", weights="shipped")
    pytest.importorskip("safetensors")
    source = models.get("resnet-small", channels=1)
    models.save(source, tmp_path / "resnet-small-digits.safetensors")
    shipped = models.get("resnet-small", channels=1, weights="shipped")
    assert models.fingerprint(shipped) == models.fingerprint(source)
    with pytest.raises(ValueError, match=r"resnet26.*resnet-small"):
        models.get("resnet26", weights="shipped")


def test_shipped_weights_are_in_the_package():
    assert registry._weights_folder().name == "weights"
    assert str(registry._weights_folder()).startswith(models.__path__[0])


def build_tiny(classes=10, channels=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * 4, classes))


def test_a_model_of_a_user_is_one_registered_function():
    try:
        models.register("tiny")(build_tiny)
        assert "tiny" in models.available()
        assert models.get("tiny", classes=3)[1].out_features == 3
        with pytest.raises(ValueError, match="tiny"):
            models.register("tiny")
    finally:
        models.unregister("tiny")
    with pytest.raises(TypeError, match="a:b"):
        models.register("a:b")
