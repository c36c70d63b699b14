"""Attacks on the choice of ``past`` with ``changes="detect"``, on real digits."""

import pytest
import torch

import medbn
from medbn import data, models
from medbn.attacks import DIA
from medbn.attacks.objectives import FalseAlarm, HiddenChange, WrongMemory

MALICIOUS = slice(80, 100)


def digits(corruption, first=0):
    dataset = data.load("digits", corruption=corruption, severity=5) if corruption else data.load("digits")
    return list(dataset.batches(100, drop_last=True))[first:]


def attack(objective, steps=6):
    return DIA(objective, steps=steps, step_size=0.1, start="clean")


@pytest.fixture(scope="module")
def model():
    return models.get("resnet-small", weights="shipped")


def detector(model, *batches, **options):
    tta = medbn.adapt(model, "past", "image_median@0.5", changes="detect", batch_size=100, **options)
    for images, _ in batches:
        tta(images)
    return tta


def side(tta, images, rows):
    """How many images lie above each remembered median."""
    with medbn.observe(tta.model, always_estimate=True) as observations, torch.no_grad():
        tta.model(images)
        features = medbn.methods.image_features(observations[0].input)
    return (features[rows] > tta.memory["medians"][0][tta.memory["current"]]).float().sum(dim=0)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["above", "below"])
def test_a_false_alarm_is_aimed_at_and_not_raised_by_a_fifth(where, model):
    tta = detector(model, *digits("")[:2])
    for images, labels in digits("")[2:5]:
        poisoned = attack(FalseAlarm(where))(tta, images, labels, MALICIOUS)
        malicious, clean = side(tta, poisoned, MALICIOUS).mean(), side(tta, images, MALICIOUS).mean()
        assert malicious > clean + 2 if where == "above" else malicious < clean - 2
        tta(poisoned)
    assert tta.memory["declared"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("objective", [FalseAlarm(), HiddenChange(), WrongMemory(), WrongMemory(1)])
def test_steps_raise_what_is_maximised(objective, model):
    tta = detector(model, *digits("")[:2], *digits("brightness")[2:3])
    images, labels = digits("impulse_noise")[4]
    values = [attack(objective, steps=steps).craft(tta, images, labels, MALICIOUS).value for steps in (0, 6)]
    assert values[1] > values[0] + 10
    poisoned = attack(objective)(tta, images, labels, MALICIOUS)
    assert torch.equal(poisoned[:80], images[:80])


@pytest.mark.slow
def test_a_majority_does_raise_an_alarm(model):
    tta = detector(model, *digits("")[:2])
    images, labels = digits("")[2]
    tta(attack(FalseAlarm("above"))(tta, images, labels, slice(20, 100)))
    assert tta.memory["declared"] == 2


@pytest.mark.slow
def test_a_fifth_is_too_few_to_steer_which_memory_is_chosen(model):
    tta = detector(model, *digits("")[:2], *digits("brightness")[2:3])
    assert tta.memory["declared"] == 2
    images, labels = digits("brightness")[4]
    poisoned = attack(WrongMemory(0))(tta, images, labels, MALICIOUS)
    chosen = {}
    for name, batch in (("clean", images), ("attacked", poisoned)):
        twin = detector(model)
        twin.restore(tta.snapshot())
        twin(batch)
        chosen[name] = (twin.memory["current"], twin.memory["declared"])
    assert chosen["clean"] == chosen["attacked"] == (1, 2)


@pytest.mark.slow
def test_with_nothing_remembered_there_is_nothing_to_attack(model):
    images, labels = digits("")[0]
    for tta in (detector(model), medbn.adapt(model, "tebn")):
        poisoned = DIA(FalseAlarm(), steps=2, start="clean")(tta, images, labels, MALICIOUS)
        torch.testing.assert_close(poisoned, images)
    with pytest.raises(ValueError, match="side"):
        FalseAlarm("left")


def test_a_captured_step_is_refused(model):
    images, labels = digits("")[0]
    with pytest.raises(RuntimeError, match="graph=True"):
        DIA(HiddenChange(), steps=20, graph=True)(detector(model), images, labels, MALICIOUS)
