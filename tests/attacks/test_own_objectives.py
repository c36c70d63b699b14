"""Objectives on the attacker's own images, against their equations."""

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import medbn
from medbn.attacks import DIA, Ensemble, Indiscriminate, Interleaved, objectives
from medbn.attacks.objectives import (
    BalancedLowEntropy,
    Entropy,
    LabelFreeBalancedLowEntropy,
    LabelFreeNotchHighEntropy,
    NotchHighEntropy,
)
from medbn.attacks.objectives.own import wrong_classes

from ..methods.table import assert_same, make, state

OWN = ["entropy", "notch_high_entropy", "balanced_low_entropy"]
LABEL_FREE = [LabelFreeNotchHighEntropy, LabelFreeBalancedLowEntropy]
LOGITS = torch.tensor([[2.0, 0.0, -1.0], [0.0, 3.0, 0.0], [0.0, 0.5, 1.0], [1.0, 0.0, 0.0]])
LABELS = torch.tensor([0, 2, 2, 1])
BENIGN = torch.tensor([True, False, False, False])


def probabilities(row):
    total = sum(math.exp(v) for v in row.tolist())
    return [math.exp(v) / total for v in row.tolist()]


HERS = [(probabilities(row), label) for row, label in zip(LOGITS[1:], LABELS[1:].tolist(), strict=True)]


def test_entropy_and_notched_entropy():
    entropies = [-sum(p * math.log(p) for p in row) for row, _ in HERS]
    assert Entropy().value(LOGITS, LABELS, BENIGN).item() == pytest.approx(sum(entropies) / 3, rel=1e-5)
    divergences = [sum(0.5 * math.log(0.5 / p) for c, p in enumerate(row) if c != label) for row, label in HERS]
    assert NotchHighEntropy().value(LOGITS, LABELS, BENIGN).item() == pytest.approx(-sum(divergences) / 3, rel=1e-5)


def test_notched_entropy_is_greatest_away_from_the_class():
    logits = torch.tensor([[-40.0, 0.0, 0.0], [0.0, 0.0, 0.0], [9.0, 0.0, 0.0]])
    each = NotchHighEntropy().each(logits, torch.zeros(3, dtype=torch.long), torch.ones(3, dtype=torch.bool))
    assert each[0].item() == pytest.approx(0.0, abs=1e-6)
    assert each[0] > each[1] > each[2]


@pytest.mark.parametrize("momentum", [0.2, 0.5])
def test_balanced_low_entropy_follows_a_running_average(momentum):
    objective = BalancedLowEntropy(momentum)
    average = [[1 / 3] * 3 for _ in range(3)]
    for logits in (LOGITS, LOGITS.flip(1), LOGITS):
        rows = [probabilities(row) for row in logits[1:]]
        objective.value(LOGITS + 5 * torch.eye(4, 3), LABELS, BENIGN)  # an evaluation that is not the last
        value = objective.value(logits, LABELS, BENIGN).item()
        for label, members in ((1, [rows[2]]), (2, rows[:2])):
            means = [sum(row[c] for row in members) / len(members) for c in range(3)]
            average[label] = [(1 - momentum) * a + momentum * m for a, m in zip(average[label], means, strict=True)]
        wrong = wrong_classes(torch.tensor(average)).tolist()
        crossed = [-math.log(row[wrong[label]]) for row, label in zip(rows, (2, 2, 1), strict=True)]
        assert value == pytest.approx(-sum(crossed) / 3, rel=1e-4)
        objective.advance()
        torch.testing.assert_close(objective.average, torch.tensor(average))


def test_wrong_classes_are_matched_greedily():
    # Rows' shares of wrong classes: 0 → 1 has 3/4; 1 → 0, of 0 and 2, has 7/8, and comes first. Of 1 and 2, 0 has 1 and
    # 2 has 1 where 0 is taken: 0 comes first in order and takes 1; 2 is left with itself, and swaps with 0.
    average = torch.tensor([[0.2, 0.6, 0.2], [0.7, 0.2, 0.1], [0.3, 0.3, 0.4]])
    assert wrong_classes(average).tolist() == [2, 0, 1]
    four = torch.tensor([[0.0, 0.1, 0.9, 0.0], [0.1, 0.0, 0.8, 0.1], [0.1, 0.2, 0.1, 0.6], [0.4, 0.3, 0.3, 0.0]])
    assert wrong_classes(four).tolist() == [2, 0, 3, 1]


@pytest.mark.parametrize("classes", [2, 3, 5, 10])
def test_every_class_has_a_wrong_class_of_its_own(classes):
    g = torch.Generator().manual_seed(classes)
    for _ in range(60):
        average = torch.rand(classes, classes, generator=g).pow(4)
        average[torch.rand(classes, classes, generator=g) < 0.2] = 0.0
        wrong = wrong_classes(average)
        assert sorted(wrong.tolist()) == list(range(classes))
        assert (wrong != torch.arange(classes)).all()
    assert sorted(wrong_classes(torch.full((classes, classes), 1 / classes)).tolist()) == list(range(classes))


@pytest.mark.parametrize("name", OWN)
def test_benign_images_are_not_read(name):
    objective, other = objectives.get(name)(), objectives.get(name)()
    assert objective.own
    logits, labels = LOGITS.clone().requires_grad_(), LABELS.clone()
    labels[0] = 255
    (gradient,) = torch.autograd.grad(objective.value(logits, labels, BENIGN), logits)
    assert gradient[0].abs().sum() == 0
    assert (gradient[1:].abs().sum(dim=1) > 0).all()
    changed = LOGITS.clone()
    changed[0] = torch.tensor([9.0, -9.0, 1.0])
    assert torch.equal(objective.value(LOGITS, labels, BENIGN), other.value(changed, LABELS, BENIGN))
    assert objective.harm(LOGITS, LABELS, BENIGN).item() == 0.0
    assert objective.harm(changed.flip(1), LABELS, BENIGN).item() == 1.0
    with pytest.raises(ValueError, match="labels"):
        objective.check(LABELS.view(4, 1, 1), BENIGN)


@pytest.mark.parametrize("name", OWN)
def test_no_step_waits_for_a_gpu(name):
    with FakeTensorMode():
        labels, benign = torch.zeros(2, dtype=torch.long), torch.zeros(2, dtype=torch.bool)
        logits = torch.zeros(2, 4, requires_grad=True)
        value = objectives.get(name)().value(logits, labels, benign)
        assert torch.autograd.grad(value, logits)[0].shape == logits.shape


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("malicious", [slice(None), [0, 7]])
def test_steps_raise_what_is_maximised(name, malicious, model, stream):
    (images, labels), tta = stream[0], make(model, "tent", "median")
    before = state(tta)
    values = [
        DIA(objectives.get(name)(), steps=steps, step_size=0.02, start="clean")
        .craft(tta, images, labels, malicious)
        .value
        for steps in (0, 10)
    ]
    assert values[1] > values[0]
    assert_same(state(tta), before)


@pytest.mark.parametrize("kind", LABEL_FREE)
def test_without_labels_the_surrogates_predictions_are_taken(kind, model, stream):
    (images, labels), tta = stream[0], make(model, "tebn")
    with torch.no_grad():
        predicted = tta.surrogate()(images).argmax(dim=1)
    options = {"steps": 3, "step_size": 0.02, "start": "clean"}
    crafted = DIA(kind(), **options)(tta, images, labels, slice(None))
    assert torch.equal(crafted, DIA(kind(), **options)(tta, images, (labels + 1) % 10, slice(None)))
    assert torch.equal(crafted, DIA(kind(label_free=False), **options)(tta, images, predicted, slice(None)))
    assert not torch.equal(crafted, DIA(kind(label_free=False), **options)(tta, images, labels, slice(None)))


def test_a_batch_without_benign_images_needs_an_objective_on_own_ones(model, stream):
    (images, labels), tta = stream[0], make(model, "tebn")
    with pytest.raises(ValueError, match="benign"):
        DIA(Indiscriminate(), steps=1)(tta, images, labels, slice(None))
    with pytest.raises(ValueError, match="alignment"):
        DIA(Entropy(), steps=1, alignment=1.0)(tta, images, labels, slice(None))
    with pytest.raises(RuntimeError, match="graph=True"):
        DIA(BalancedLowEntropy(), steps=1, graph=True)(tta, images, labels, slice(None))
    with pytest.raises(ValueError, match="momentum"):
        BalancedLowEntropy(momentum=2.0)


def test_the_best_restart_and_the_best_of_several_attacks_are_those_of_the_objective(model, stream):
    (images, labels), tta = stream[0], make(model, "tebn")
    weak = DIA(Entropy(), steps=0, start="clean")
    strong = DIA(Entropy(), steps=8, step_size=0.05, start="random", restarts=3, check_every=2)
    generator = torch.Generator().manual_seed(0)
    alone = [
        DIA(Entropy(), steps=8, step_size=0.05, start="random", generator=generator)
        .craft(tta, images, labels, slice(None))
        .value
        for _ in range(3)
    ]
    assert strong.craft(tta, images, labels, slice(None)).value == pytest.approx(max(alone))
    assert len(set(alone)) > 1
    both = Ensemble([weak, strong])
    poisoned, scores = both.craft(tta, images, labels, slice(None))
    assert scores[1][1] > scores[0][1]
    assert torch.equal(poisoned, strong(tta, images, labels, slice(None)))


def test_the_running_average_is_that_of_the_stream_and_survives_a_stop(model):
    g = torch.Generator().manual_seed(8)
    stream = [(torch.rand(6, 3, 8, 8, generator=g), torch.randint(10, (6,), generator=g)) for _ in range(4)]

    def scenario():
        attack = DIA(BalancedLowEntropy(), steps=2, step_size=0.05, start="clean")
        return Interleaved(make(model, "tent", "median"), attack, share=0.5)

    whole, first, second = scenario(), scenario(), scenario()
    expected = list(whole.run(stream))
    list(first.run(stream[:2]))
    assert not torch.equal(first.attack.objective.average, whole.attack.objective.average)
    second.load(first.state())
    for outcome, other in zip(second.run(stream[2:]), expected[2:], strict=True):
        assert torch.equal(outcome.attacked, other.attacked)
    assert torch.equal(second.attack.objective.average, whole.attack.objective.average)
    mixed = medbn.attacks.Cumulative(make(model, "tebn"), DIA(BalancedLowEntropy(), steps=1), slice(4, 6))
    list(mixed.run(stream))
    assert "average" in mixed.state()["objective"]
