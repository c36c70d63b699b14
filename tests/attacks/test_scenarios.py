import dataclasses
import math

import pytest
import torch

import medbn
from medbn.attacks import DIA, Ensemble, Indiscriminate, Summary, Targeted, cumulative, instant, mean_iou, worst_case

from ..methods.table import METHODS, assert_same, each_kind, make, one_of_each_kind, state
from .test_dia import MALICIOUS, quick


@pytest.mark.parametrize(
    ("method", "predict"), [*one_of_each_kind(METHODS, "before"), ("tent", "after"), ("sotta", "after")]
)
def test_instant_attacks_every_batch_from_the_clean_state(method, predict, model, stream):
    tta, clean = (make(model, method, predict=predict) for _ in range(2))
    attack, stream = quick(objective=Indiscriminate(), steps=1), stream[:2]
    for outcome, (images, labels) in zip(instant(tta, stream, attack, MALICIOUS), stream, strict=True):
        victim = make(model, method, predict=predict)
        victim.restore(clean.snapshot())
        poisoned = attack(victim, images, labels, MALICIOUS)
        assert torch.equal(outcome.poisoned, poisoned)
        assert torch.equal(outcome.attacked, victim(poisoned))
        assert torch.equal(outcome.clean, clean(images))
        assert_same(state(tta), state(clean))  # as if nothing had happened


@each_kind
def test_cumulative_poison_stays(method, model, stream):
    tta, poisoned_twin, clean = (make(model, method) for _ in range(3))
    attack, stream = quick(objective=Targeted(1), steps=1), stream[:2]
    for outcome, (images, labels) in zip(cumulative(tta, stream, attack, MALICIOUS), stream, strict=True):
        poisoned = attack(poisoned_twin, images, labels, MALICIOUS)
        assert torch.equal(outcome.poisoned, poisoned)
        assert torch.equal(outcome.attacked, poisoned_twin(poisoned))
        assert torch.equal(outcome.clean, clean(images))
        assert_same(state(tta), state(poisoned_twin))


def test_a_scenario_of_a_user_is_run_like_the_others(model, stream):
    @medbn.attacks.scenarios.register("once")
    class Once(medbn.attacks.Cumulative):
        """Attack the first batch only."""

        def step(self, images, labels):
            poisoned = super().step(images, labels)
            self.malicious, self.attack = slice(9, 10), DIA(self.attack.objective, steps=0, start="clean")
            return poisoned

    try:
        assert medbn.attacks.scenarios.available() == ["cumulative", "instant", "interleaved", "once", "replay"]
        kind = medbn.attacks.scenarios.get("once")
        assert (kind.name, kind.label) == ("once", "once")
        first, *others = kind(make(model, "sema"), quick(), MALICIOUS).run(stream)
        assert not torch.equal(first.poisoned, stream[0][0])
        assert all(torch.equal(o.poisoned, images) for o, (images, _) in zip(others, stream[1:], strict=True))
        assert not any(torch.equal(o.attacked, o.clean) for o in others)  # the poison has stayed
    finally:
        medbn.attacks.scenarios.unregister("once")


# --- metrics ---------------------------------------------------------------------------------------------------------


def outcome(objective, attacked, clean, labels, benign):
    def logits(classes):
        return torch.nn.functional.one_hot(torch.tensor(classes), 4).float()

    return medbn.attacks.Outcome(
        objective, torch.empty(0), logits(attacked), logits(clean), torch.tensor(labels), torch.tensor(benign)
    )


def test_malicious_images_never_count_and_prior_hits_are_reported():
    benign = [True, True, True, True, False]
    outcomes = [
        outcome(Targeted(0), [1, 1, 2, 3, 0], [0, 1, 2, 3, 3], [0, 1, 2, 3, 3], benign),  # hit, nothing else wrong
        outcome(Targeted(0), [0, 2, 2, 0, 3], [0, 1, 2, 0, 3], [0, 1, 2, 3, 3], benign),  # missed, one more wrong
        outcome(Targeted(0), [1, 1, 2, 3, 3], [1, 1, 2, 3, 3], [0, 1, 2, 3, 3], benign),  # was so before
    ]
    summary = Summary.of(outcomes)
    assert (summary.targets, summary.hits, summary.already, summary.gained, summary.batches) == (3, 2, 1, 1, 3)
    assert summary.success_rate == pytest.approx(2 / 3)
    assert summary.errors == [0.25, 0.5, 0.25]
    assert summary.errors_without == [0.0, 0.25, 0.25]
    assert summary.error == pytest.approx(1 / 3)
    assert summary.error_without == pytest.approx(1 / 6)
    assert math.isnan(summary.iou)


def test_an_indiscriminate_attack_has_no_success_rate():
    summary = Summary.of([outcome(Indiscriminate(), [0, 0], [0, 1], [0, 1], [True, True])])
    assert math.isnan(summary.success_rate)
    assert summary.error == 0.5


def test_mean_iou_is_over_the_classes_of_the_labels():
    g = torch.Generator().manual_seed(0)
    predicted, labels = torch.randint(5, (2, 3, 6, 6), generator=g)
    labels[0, 0] = 255
    expected = []
    for c in range(5):
        p, t = (predicted == c) & (labels != 255), labels == c
        expected.append((p & t).sum().item() / (p | t).sum().item())
    assert mean_iou(predicted, labels, 5) == pytest.approx(sum(expected) / len(expected))
    assert mean_iou(predicted.byte(), labels.byte(), 19) == pytest.approx(mean_iou(predicted, labels, 19))
    assert mean_iou(labels.clamp(max=4), labels, 7) == 1.0


def test_the_pixels_of_all_batches_count_alike(dense_model, dense_stream):
    """The mean IoU is that of all pixels at once, not the mean over batches."""
    attack = quick(objective=medbn.attacks.IndiscriminateSegmentation())
    stream = [dense_stream[0], (dense_stream[1][0], dense_stream[1][1].clamp(max=3))]  # batches with other classes
    outcomes = list(instant(make(dense_model, "tebn"), stream, attack, [5]))
    summary = Summary.of(outcomes)
    for logits, iou, error in (
        ([o.attacked for o in outcomes], summary.iou, summary.error),
        ([o.clean for o in outcomes], summary.iou_without, summary.error_without),
    ):
        predicted = torch.cat([one[:5].argmax(1) for one in logits])
        labels = torch.cat([labels[:5] for _, labels in stream])
        assert iou == pytest.approx(mean_iou(predicted, labels, 10))
        assert error == pytest.approx((predicted != labels).double().mean().item())
    assert summary.batches == 2
    assert math.isnan(summary.success_rate)


# --- ensembles -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_ensemble_returns_what_harms_the_real_adapter_most(model, stream):
    tta, (images, labels) = make(model, "tent", predict="after"), stream[0]
    attacks = [
        quick(objective=Indiscriminate(), gradient=g, steps=s) for g in ("exact", "straight_through") for s in (1, 20)
    ]
    before = state(tta)
    poisoned, judged = Ensemble(attacks).craft(tta, images, labels, MALICIOUS)
    assert_same(state(tta), before)
    benign = torch.arange(10) < 7
    scores = []
    for attack in attacks:
        candidate = attack(tta, images, labels, MALICIOUS)
        snapshot = tta.snapshot()
        logits = tta(candidate)
        tta.restore(snapshot)
        scores.append(tuple(f(logits, labels, benign).item() for f in (attack.objective.harm, attack.objective.value)))
        if scores[-1] == max(judged):
            assert torch.equal(candidate, poisoned)
    assert scores == judged
    assert Ensemble(attacks)(tta, images, labels, MALICIOUS).equal(poisoned)


def test_an_ensemble_needs_one_objective():
    with pytest.raises(ValueError, match="at least one attack"):
        Ensemble([])
    with pytest.raises(ValueError, match="same objective"):
        Ensemble([DIA(Targeted(0)), DIA(Targeted(1))])


def test_a_failing_clean_line_leaves_the_poisoned_state(model, stream):
    tta, twin = make(model, "tent"), make(model, "tent")
    attack = quick(objective=Indiscriminate())
    calls = []

    def fail_on_the_clean_batch(module, args):
        calls.append(1)
        if torch.equal(args[0], stream[0][0]):
            raise KeyboardInterrupt

    tta.model.register_forward_pre_hook(fail_on_the_clean_batch)
    with pytest.raises(KeyboardInterrupt):
        next(cumulative(tta, stream, attack, MALICIOUS))
    twin(attack(twin, *stream[0], MALICIOUS))
    assert_same(state(tta), state(twin))


@pytest.mark.slow
def test_the_worst_case_set(model, stream):
    attack = worst_case(Indiscriminate(), steps=2)
    kinds = [(a.gradient, a.start, a.restarts) for a in attack.attacks]
    assert kinds == [
        ("exact", "grey", 1),
        ("straight_through", "grey", 1),
        ("smooth", "grey", 1),
        ("straight_through", "random", 2),
    ]
    assert [a.restarts for a in worst_case(restarts=5).attacks] == [5, 5, 5, 5]
    with pytest.raises(ValueError, match="worst_case tries every gradient"):
        worst_case(gradient="exact")
    assert all(a.steps == 2 and a.objective == Indiscriminate() for a in attack.attacks)
    summary = Summary.of(instant(make(model, "tent"), stream[:2], attack, MALICIOUS))
    single = [
        Summary.of(instant(make(model, "tent"), stream[:2], dataclasses.replace(a), MALICIOUS)) for a in attack.attacks
    ]
    assert summary.error >= max(s.error for s in single) - 1e-6
