"""``medbn models accuracy`` counts what a model classifies correctly."""

from __future__ import annotations

import pytest

from medbn import data, models
from medbn.cli import main

pytest.importorskip("safetensors")


@pytest.fixture
def digits_folder(tmp_path):
    """Return a data folder with the shipped weights, where the command looks for them."""
    model = models.get("resnet-small", weights="shipped", classes=10, channels=1)
    models.save(model, tmp_path / "models" / "resnet-small-digits.safetensors")
    return tmp_path


def test_correct_images_are_counted_with_an_interval(digits_folder, capsys):
    images, labels = next(data.load("digits").batches(100))
    model = models.get("resnet-small", weights="shipped")
    correct = int((model(images).argmax(1) == labels).sum())
    command = ["models", "accuracy", "resnet-small", "--data", "digits", "--root", str(digits_folder)]
    assert main([*command, "--images", "100", "--batch-size", "30"]) == 0
    printed = capsys.readouterr().out
    assert f"{correct} of 100 test images" in printed
    assert f"{correct / 100:.2%} (" in printed


def test_pixels_are_counted_over_the_classes_that_occur(capsys):
    metrics = pytest.importorskip("torchmetrics.classification")
    images, labels = next(data.load_segmentation("scenes").batches(6))
    predicted = models.get("unet-small", weights="shipped")(images).argmax(1)
    ious = metrics.MulticlassJaccardIndex(13, average="none")(predicted, labels)
    occur = labels.unique()
    command = ["models", "accuracy", "unet-small", "--data", "scenes", "--weights", "shipped", "--images", "6"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert f"6 test images of scenes, {len(occur)} of 13 classes" in printed
    assert f"{ious[occur].mean().item():.2%} (" in printed
    assert f"{(predicted == labels).double().mean().item():.2%} (" in printed


def test_a_size_is_for_segmentation(refusal):
    assert "--size" in refusal(["models", "accuracy", "resnet-small", "--data", "digits", "--size", "8x8"])


def test_missing_weights_are_one_line(tmp_path, capsys):
    assert main(["models", "accuracy", "resnet26", "--data", "digits", "--root", str(tmp_path)]) == 2
    printed = capsys.readouterr().err
    assert "resnet26-digits.safetensors" in printed
    assert printed.count("\n") == 1
