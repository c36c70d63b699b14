"""Training: it learns, is reproducible, can be continued, and the shipped weights are good."""

from __future__ import annotations

import importlib.resources

import pytest
import torch
from torch import nn

import medbn
from medbn import data, models, training
from medbn.cli import main
from medbn.training import Plan, accuracy, augment, train

from ..data.images import cifar_records


def tiny() -> nn.Module:
    torch.manual_seed(0)
    return models.get("resnet-small", channels=1)


@pytest.fixture(scope="module")
def digits():
    return data.load("digits", "train").subset(range(300))


@pytest.mark.slow
def test_it_learns_and_is_reproducible_to_the_bit(digits):
    plan = Plan(epochs=15)
    epochs = []
    one, two = tiny(), tiny()
    last = train(one, digits, plan, test=data.load("digits"), report=epochs.append)
    train(two, digits, plan)
    assert [epoch.number for epoch in epochs] == list(range(1, 16))
    assert epochs[0].loss > 2 * epochs[-1].loss
    assert last.test_accuracy > 0.7
    assert last.test_accuracy == accuracy(one, data.load("digits"))
    assert models.fingerprint(one) == models.fingerprint(two)
    assert not one.training
    other = tiny()
    train(other, digits, Plan(epochs=1, seed=1))
    assert models.fingerprint(other) != models.fingerprint(one)


@pytest.mark.slow
def test_a_stopped_run_continues_to_the_same_bits(digits, tmp_path):
    plan, path = Plan(epochs=3), tmp_path / "run.checkpoint"
    whole = tiny()
    train(whole, digits, plan)

    def stop(epoch: training.Epoch) -> None:
        if epoch.number == 2:
            raise KeyboardInterrupt

    stopped = tiny()
    with pytest.raises(KeyboardInterrupt):
        train(stopped, digits, plan, checkpoint=path, report=stop)
    seen = []
    continued = tiny()
    train(continued, digits, plan, checkpoint=path, report=seen.append)
    assert [epoch.number for epoch in seen] == [3]
    assert models.fingerprint(continued) == models.fingerprint(whole)
    again = train(tiny(), digits, plan, checkpoint=path, test=digits)  # all epochs are done: nothing but the score
    assert again.test_accuracy is not None


def test_dropout_continues_to_the_same_bits_too(digits, tmp_path):
    def build() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(256, 10))

    def stop(epoch: training.Epoch) -> None:
        raise KeyboardInterrupt

    whole, stopped, continued = build(), build(), build()
    before = torch.get_rng_state()
    train(whole, digits, Plan(epochs=2, lr=0.01))
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(KeyboardInterrupt):
        train(stopped, digits, Plan(epochs=2, lr=0.01), checkpoint=tmp_path / "c", report=stop)
    torch.rand(5)
    train(continued, digits, Plan(epochs=2, lr=0.01), checkpoint=tmp_path / "c")
    assert models.fingerprint(continued) == models.fingerprint(whole)


def test_a_checkpoint_of_another_run_is_refused(digits, tmp_path):
    path = tmp_path / "run.checkpoint"
    train(tiny(), digits, Plan(epochs=1), checkpoint=path)
    with pytest.raises(ValueError, match="lr"):
        train(tiny(), digits, Plan(epochs=1, lr=0.2), checkpoint=path)
    with pytest.raises(ValueError, match="data"):
        train(tiny(), digits.subset(range(250)), Plan(epochs=1), checkpoint=path)
    path.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"run\.checkpoint"):
        train(tiny(), digits, Plan(epochs=1), checkpoint=path)
    assert path.read_bytes() == b"nonsense"


def test_large_datasets_are_read_batch_by_batch_with_the_same_result(digits, monkeypatch):
    one, two = tiny(), tiny()
    train(one, digits, Plan(epochs=1))
    monkeypatch.setattr("medbn.training.classification.IN_MEMORY", 0)
    train(two, digits, Plan(epochs=1))
    assert models.fingerprint(one) == models.fingerprint(two)


def test_a_diverging_loss_is_an_error(digits):
    with pytest.raises(ValueError, match="lr"):
        train(tiny(), digits, Plan(epochs=2, lr=1e20))


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"lr": -1.0}, {"batch_size": 0}])
def test_wrong_plans_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Plan(**wrong)


def test_augmentation_shifts_and_flips_and_nothing_else():
    image = torch.arange(1, 257, dtype=torch.int64).view(1, 1, 16, 16)
    shifted = augment(image.expand(200, 1, 16, 16), torch.Generator().manual_seed(0), flip=True)
    plain = augment(image.expand(200, 1, 16, 16), torch.Generator().manual_seed(0), flip=False)
    padded = nn.functional.pad(image[0, 0], [2] * 4)
    allowed = {padded[i : i + 16, j : j + 16].flatten().tolist().__str__() for i in range(5) for j in range(5)}
    flipped = padded.flip(1)
    flipped_images = {flipped[i : i + 16, j : j + 16].flatten().tolist().__str__() for i in range(5) for j in range(5)}
    seen = {str(one.flatten().tolist()) for one in shifted}
    assert seen <= allowed | flipped_images
    assert seen & allowed
    assert seen & flipped_images
    assert {str(one.flatten().tolist()) for one in plain} <= allowed


def test_the_shipped_weights_are_good_and_small():
    model = models.get("resnet-small", weights="shipped")
    assert accuracy(model, data.load("digits")) > 0.98
    file = importlib.resources.files("medbn.models") / "weights" / "resnet-small-digits.safetensors"
    assert len(file.read_bytes()) < 1_000_000
    metadata = models.metadata(str(file))
    assert (metadata["data"], metadata["model"], metadata["seed"]) == ("digits", "resnet-small", "0")


def test_on_the_command_line(tmp_path, capsys):
    out = tmp_path / "model.safetensors"
    assert main(["train", "resnet-small", "--data", "digits", "--epochs", "1", "--out", str(out), "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert "1 epochs in" in printed
    model = models.get("resnet-small", weights=out)  # the file says how many channels and classes
    assert f"{accuracy(model, data.load('digits')):.1%}" in printed
    assert not list(tmp_path.glob(".*"))


@pytest.mark.slow
def test_a_vision_transformer_is_trained_on_cifar_and_adapts(tmp_path):
    """On random pixels in the layout of CIFAR-10, as the recipe without-batchnorm needs it."""
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for part in range(1, 6):
        cifar_records(8, 1, 10, part).tofile(folder / f"data_batch_{part}.bin")
    cifar_records(8, 1, 10).tofile(folder / "test_batch.bin")
    out = tmp_path / "models" / "vit-small-cifar10.safetensors"
    options = ["--root", str(tmp_path), "--epochs", "1", "--batch-size", "20", "--lr", "0.01", "--quiet"]
    assert main(["train", "vit-small", "--data", "cifar10", "--out", str(out), *options]) == 0
    model = models.get("vit-small", weights=str(out))
    with pytest.warns(UserWarning, match="no BatchNorm"):
        tta = medbn.adapt(model, "tent")
    images, _ = next(data.load("cifar10", root=tmp_path).batches(8))
    first = tta(images)
    assert first.shape == (8, 10)
    assert not torch.equal(tta(images), first)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resnet-smal", "--data", "digits"], "'resnet-small'"),
        (["resnet-small", "--data", "digit"], "'digits'"),
        (["resnet-small", "--data", "digits", "--epochs", "0"], "epochs"),
        (["resnet-small", "--data", "digits", "--out", "weights.pt"], ".safetensors"),
        (["resnet-small", "--data", "digits", "--device", "abacus"], "'abacus'"),
        (["json:dumps", "--data", "digits"], "json:dumps"),
    ],
)
def test_wrong_commands_are_one_line_and_exit_2(arguments, message, capsys):
    assert main(["train", *arguments]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.gpu
def test_it_learns_on_a_gpu(digits):
    last = train(tiny(), digits, Plan(epochs=10), test=data.load("digits"), device="cuda")
    assert last.test_accuracy > 0.85
