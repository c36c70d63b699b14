"""The options of training a classifier, each against a computation of its own."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from medbn import data, models, training
from medbn.cli import main
from medbn.training import Plan, erase, train
from medbn.training.schedules import cosine


@pytest.fixture(scope="module")
def digits():
    return data.load("digits", "train").subset(range(100))


def tiny() -> nn.Module:
    torch.manual_seed(0)
    return models.get("resnet-small", channels=1)


def constant(bias: torch.Tensor) -> nn.Module:
    """Return a model whose logits do not depend on the images before its first update."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, len(bias)))
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].bias.copy_(bias)
    return model


def test_a_cosine_rises_and_falls_to_zero():
    rates = [cosine(done, 400) for done in range(401)]
    assert rates.index(1.0) == 19
    assert all(before < after for before, after in pairwise(rates[:20]))
    assert all(before > after for before, after in pairwise(rates[20:]))
    assert rates[20 + 190] == pytest.approx(math.cos(math.pi / 4) ** 2)
    assert rates[400] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("schedule", training.SCHEDULES)
def test_the_steps_have_the_learning_rates_of_the_schedule(digits, schedule):
    seen = []
    hook = register_optimizer_step_pre_hook(lambda optimizer, *_: seen.append(optimizer.param_groups[0]["lr"]))
    try:
        train(constant(torch.zeros(10)), digits, Plan(epochs=10, lr=0.2, batch_size=50, schedule=schedule))
    finally:
        hook.remove()
    expected = [0.2 * cosine(done, 20) for done in range(20)]
    if schedule == "one-cycle":  # from a 25th to the highest in 30 % of the steps, and to a 10,000th of the first
        rise, fall = (lambda at: (1 - math.cos(math.pi * at)) / 2), 0.2 / 25 / 1e4
        expected = [
            0.2 / 25 + (0.2 - 0.2 / 25) * rise(done / 5) if done <= 5 else 0.2 + (fall - 0.2) * rise((done - 5) / 14)
            for done in range(20)
        ]
    assert seen == pytest.approx(expected)


def test_the_average_is_that_of_the_weights_after_every_step(digits):
    states = []
    model = tiny()
    plan = Plan(epochs=4, batch_size=100, ema=0.6, lr=0.05)
    train(model, digits, plan, report=lambda _: states.append({k: v.clone() for k, v in model.state_dict().items()}))
    expected = states[0]
    for state in states[1:]:
        expected = {name: 0.6 * expected[name] + 0.4 * value for name, value in state.items()}
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            torch.testing.assert_close(value, expected[name])
    assert not torch.equal(model.state_dict()["conv1.weight"], states[-1]["conv1.weight"])


def test_the_accuracy_is_that_of_the_average(digits):
    model = tiny()
    last = train(model, digits, Plan(epochs=2, ema=0.9), test=digits)
    assert last.test_accuracy == training.accuracy(model, digits)


def test_an_average_continues_to_the_same_bits(digits, tmp_path):
    plan = Plan(epochs=3, ema=0.9, erase=4, schedule="cosine", label_smoothing=0.1)
    whole, stopped, continued = tiny(), tiny(), tiny()
    train(whole, digits, plan)

    def stop(epoch: training.Epoch) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(stopped, digits, plan, checkpoint=tmp_path / "c", report=stop)
    train(continued, digits, plan, checkpoint=tmp_path / "c")
    assert models.fingerprint(continued) == models.fingerprint(whole)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_smoothed_labels_have_the_cross_entropy_of_a_mixture(digits, smoothing):
    bias = torch.linspace(-1, 2, 10)
    epochs = []
    train(constant(bias), digits, Plan(epochs=1, batch_size=100, label_smoothing=smoothing), report=epochs.append)
    logs = bias.double() - bias.double().exp().sum().log()
    expected = -(1 - smoothing) * logs[digits.labels].mean() - smoothing * logs.mean()
    assert epochs[0].loss == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("auto", "float32"), ("float32", "float32"), ("bfloat16", "bfloat16")]
)
def test_forward_passes_are_in_the_precision_and_weights_in_float32(digits, precision, dtype):
    seen = []
    model = tiny()
    model.linear.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    last = train(model, digits, Plan(epochs=1, precision=precision))
    assert set(seen) == {getattr(torch, dtype)}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    reference = train(tiny(), digits, Plan(epochs=1, precision="float32"))
    assert last.loss == pytest.approx(reference.loss, rel=0.1)


def test_auto_is_bfloat16_on_a_gpu_alone():
    assert Plan().uses_bfloat16("cuda")
    assert not Plan().uses_bfloat16("cpu")
    assert not Plan(precision="float32").uses_bfloat16("cuda")


def test_the_layout_changes_nothing_but_the_layout(digits):
    one, two = tiny(), tiny()
    first = train(one, digits, Plan(epochs=1))
    second = train(two, digits, Plan(epochs=1, channels_last=False))
    weights = [model.layer1[0].conv1.weight for model in (one, two)]
    assert weights[0].is_contiguous(memory_format=torch.channels_last)
    assert weights[1].is_contiguous()
    assert not weights[0].is_contiguous()
    assert first.loss == pytest.approx(second.loss, rel=1e-3)


def test_a_square_is_erased_and_nothing_else():
    images = torch.rand(200, 3, 10, 12, generator=torch.Generator().manual_seed(1))
    erased = erase(images, 4, torch.Generator().manual_seed(0))
    mean = images.mean(dim=(0, 2, 3)).view(1, 3, 1, 1).expand_as(images)
    changed = (erased != images).all(dim=1)
    assert torch.equal(erased[changed[:, None].expand_as(images)], mean[changed[:, None].expand_as(images)])
    assert torch.equal(erased[~changed[:, None].expand_as(images)], images[~changed[:, None].expand_as(images)])
    for each in changed:
        rows, columns = each.any(1).nonzero().flatten(), each.any(0).nonzero().flatten()
        height, width = int(rows[-1] - rows[0]) + 1, int(columns[-1] - columns[0]) + 1
        assert int(each.sum()) == height * width  # a rectangle
        assert 2 <= height <= 4
        assert 2 <= width <= 4
    assert changed.any(0).all()  # everywhere, at some time
    assert torch.equal(erased, erase(images, 4, torch.Generator().manual_seed(0)))


@pytest.mark.parametrize(
    "wrong",
    [{"ema": 1.0}, {"label_smoothing": -0.1}, {"erase": -1}, {"schedule": "cosin"}, {"precision": "half"}],
)
def test_wrong_options_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Plan(**wrong)


@pytest.mark.slow
def test_all_options_together_learn(tmp_path):
    images = data.load("digits", "train").subset(range(300))
    plan = Plan(epochs=15, ema=0.9, erase=3, schedule="cosine", label_smoothing=0.1, precision="bfloat16")
    last = train(tiny(), images, plan, test=data.load("digits"))
    assert last.test_accuracy > 0.7


def test_minutes_stop_after_an_epoch_and_the_same_command_continues(tmp_path, capsys, monkeypatch):
    pytest.importorskip("safetensors")
    monkeypatch.chdir(tmp_path)
    images = data.load("digits", "train").subset(range(60))
    monkeypatch.setattr(data, "load", lambda *_, **__: images)
    command = ["train", "resnet-small", "--data", "digits", "--epochs", "2", "--ema", "0.9", "--erase", "2", "--quiet"]
    assert main([*command, "--minutes", "1e-9"]) == 3
    printed = capsys.readouterr()
    assert "1 of 2 epochs" in printed.err
    assert not (tmp_path / "resnet-small-digits.safetensors").exists()
    assert main(command) == 0
    facts = models.metadata(tmp_path / "resnet-small-digits.safetensors")
    assert facts["command"] == "medbn train resnet-small --data digits --epochs 2 --ema 0.9 --erase 2"
    assert [file.name for file in tmp_path.iterdir()] == ["resnet-small-digits.safetensors"]


def test_options_of_the_other_task_are_refused(capsys):
    assert main(["train", "unet-small", "--data", "scenes", "--no-channels-last"]) == 2
    assert "--no-channels-last is for classification" in capsys.readouterr().err
    assert main(["train", "resnet-small", "--data", "digits", "--label-smoothing", "1.5"]) == 2
    assert "label_smoothing" in capsys.readouterr().err
