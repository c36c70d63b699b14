import copy
import dataclasses
import gc

import pytest
import torch
from torch import nn

import medbn
from medbn.attacks import DIA, Indiscriminate, Targeted

from ..methods.table import METHODS, assert_same, combine, make, state
from ..reference import ESTIMATORS
from .conftest import Linear

MALICIOUS = slice(7, 10)


def quick(**options):
    return DIA(**{"steps": 3, "step_size": 8 / 255, **options})


# --- every combination -----------------------------------------------------------------------------------------------


AIMS = [(Targeted(2), "white"), (Indiscriminate(), "semi")]


@pytest.mark.parametrize(
    ("method", "estimator", "objective", "knowledge"),
    [
        *combine(METHODS, *(("median", *aim) for aim in AIMS)),
        *combine(["tebn"], *((e, *aim) for aim in AIMS for e in ESTIMATORS if e != "median")),
    ],
)
def test_malicious_images_are_crafted_and_nothing_else_changes(method, estimator, objective, knowledge, model, stream):
    tta = make(model, method, estimator)
    tta(stream[0][0])
    before = state(tta)
    images, labels = stream[1]
    kept_images, kept_labels = images.clone(), labels.clone()
    poisoned = quick(objective=objective, knowledge=knowledge)(tta, images, labels, MALICIOUS)
    assert_same(state(tta), before)
    assert torch.equal(images, kept_images)
    assert torch.equal(labels, kept_labels)
    assert torch.equal(poisoned[:7], images[:7])
    assert not torch.equal(poisoned[7:], images[7:])
    assert poisoned.min() >= 0
    assert poisoned.max() <= 1
    assert not poisoned.requires_grad


@pytest.mark.slow
@pytest.mark.parametrize("gradient", ["exact", "straight_through", "smooth"])
@pytest.mark.parametrize(
    ("estimator", "objective"),
    [*((e, Targeted(0)) for e in ESTIMATORS), ("median", Indiscriminate(clamp=None))],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_the_objective_rises(gradient, estimator, objective, model, stream):
    values = []
    attack = DIA(
        objective, steps=25, gradient=gradient, callback=lambda step, images, value: values.append(value.item())
    )
    attack(make(model, "tebn", estimator), *stream[0], MALICIOUS)
    assert len(values) == 25
    assert max(values[1:]) > values[0]
    if estimator in ("mean", "image_median") or gradient == "smooth":  # a gradient that says something
        assert sum(values[-5:]) > sum(values[:5])


# --- known answers ---------------------------------------------------------------------------------------------------


def test_the_optimal_poison_of_one_layer_is_found():
    """Centre = mean, variance = 1: the target's logit is its value minus the mean, so the best poison is a corner."""
    constant = medbn.estimators.Estimator("constant", lambda x, v: (x.mean((0, 2)), torch.ones_like(x[0, :, 0])), False)

    class Margin(nn.Module):
        def __init__(self):
            super().__init__()
            self.bn = nn.BatchNorm1d(1, affine=False)

        def forward(self, x):
            z = self.bn(x).flatten(1)
            return torch.cat([z, -z], dim=1)

    images, labels = torch.rand(10, 1, 1), torch.zeros(10, dtype=torch.long)
    tta = medbn.adapt(Margin(), "tebn", constant)
    for label, corner in ((1, 1.0), (0, 0.0)):  # class 1 wants a low logit, so a high mean
        labels = torch.full((10,), 1 - label)
        poisoned = DIA(Targeted(0, label), steps=150)(tta, images, labels, MALICIOUS)
        assert torch.equal(poisoned[7:], torch.full((3, 1, 1), corner))


def test_batch_norm_falls_and_image_median_holds():
    g = torch.Generator().manual_seed(0)
    images = 0.5 + 0.04 * torch.randn(20, 30, generator=g).clamp(-3, 3)
    images[0] += 0.03  # clearly of class 0
    labels = torch.zeros(20, dtype=torch.long)
    hits = {}
    for estimator in ("mean", "median", "image_median"):
        tta = medbn.adapt(Linear(30), "tebn", estimator)
        for gradient in ("exact", "straight_through"):
            poisoned = DIA(Targeted(0), gradient=gradient)(tta, images, labels, slice(16, 20))
            hits[estimator, gradient] = tta(poisoned)[0].argmax().item() == 1
        assert tta(images)[0].argmax().item() == 0
    assert hits["mean", "exact"]
    assert hits["mean", "straight_through"]
    assert not hits["image_median", "exact"]
    assert not hits["image_median", "straight_through"]


# --- the loop's options ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["grey", "offset", "clean", "random"])
@pytest.mark.parametrize("epsilon", [1.0, 8 / 255])
def test_starts_and_limits(start, epsilon, model, stream):
    images, labels = stream[0]
    tta = make(model, "tebn")
    first = DIA(steps=0, start=start, epsilon=epsilon)(tta, images, labels, MALICIOUS)[7:]
    last = DIA(steps=20, start=start, epsilon=epsilon)(tta, images, labels, MALICIOUS)[7:]
    for crafted in (first, last):
        assert (crafted - images[7:]).abs().max() <= epsilon + 1e-6
        assert crafted.min() >= 0
        assert crafted.max() <= 1
    assert (last - first).abs().max() <= 20 / 255 + 1e-6
    if epsilon == 1.0:
        expected = {"grey": torch.full_like(first, 0.5), "offset": (images[7:] + 0.5).clamp(max=1), "clean": images[7:]}
        if start in expected:
            assert torch.equal(first, expected[start])


def test_a_step_moves_every_pixel_by_the_step_size(model, stream):
    images, labels = stream[0]
    moved = DIA(steps=1, step_size=0.01)(make(model, "tebn", "mean"), images, labels, MALICIOUS)[7:] - 0.5
    assert ((moved.abs() - 0.01).abs() < 1e-6).float().mean() > 0.99


def test_the_same_seed_gives_the_same_poison(model, stream):
    def craft(seed):
        return quick(start="random", restarts=2, seed=seed)(make(model, "tent"), *stream[0], MALICIOUS)

    assert torch.equal(craft(1), craft(1))
    assert not torch.equal(craft(1), craft(2))
    moving = quick(start="random", generator=torch.Generator().manual_seed(1))
    first, second = (moving(make(model, "tent"), *stream[0], MALICIOUS) for _ in range(2))
    assert not torch.equal(first, second)
    again = quick(start="random", generator=torch.Generator().manual_seed(1))
    assert torch.equal(again(make(model, "tent"), *stream[0], MALICIOUS), first)


def test_a_random_start_is_anywhere_in_the_ball(model, stream):
    images, labels = stream[0]
    moved = DIA(steps=0, start="random", epsilon=0.1)(make(model, "tebn"), images, labels, MALICIOUS)[7:] - images[7:]
    inside = moved[(images[7:] > 0.1) & (images[7:] < 0.9)]
    assert (inside > 0.05).float().mean().item() == pytest.approx(0.25, abs=0.08)
    assert (inside < -0.05).float().mean().item() == pytest.approx(0.25, abs=0.08)


def test_inside_no_grad_and_with_gradients_on_the_images(model, stream):
    tta, (images, labels) = make(model, "tent"), stream[0]
    expected = quick()(tta, images, labels, MALICIOUS)
    with torch.no_grad():
        assert torch.equal(quick()(tta, images, labels, MALICIOUS), expected)
    assert torch.equal(quick()(tta, images.clone().requires_grad_(), labels.int(), MALICIOUS), expected)


def test_small_steps_count_in_half_precision(model, stream):
    images, labels = stream[0]
    tta = make(model.bfloat16(), "tebn", "mean")
    poisoned = DIA(steps=20, step_size=1 / 2550, epsilon=0.5)(tta, images.bfloat16(), labels, MALICIOUS)
    assert poisoned.dtype == torch.bfloat16
    start = DIA(steps=0, epsilon=0.5)(tta, images.bfloat16(), labels, MALICIOUS)
    assert (poisoned[7:] != start[7:]).float().mean() > 0.5


def test_a_model_left_in_train_mode_is_not_trained_by_an_attack(model, stream):
    tta = make(model, "tebn")
    tta.model.train()
    before = {name: t.clone() for name, t in tta.model.state_dict().items()}
    quick()(tta, *stream[0], MALICIOUS)
    assert all(torch.equal(t, before[name]) for name, t in tta.model.state_dict().items())


def test_other_starts_are_tried_until_one_succeeds(model, stream):
    tta, (images, labels) = make(model, "tebn"), stream[0]
    tried = []
    attack = quick(restarts=3, callback=lambda step, images, value: tried.append(images.clone()))
    attack(tta, images, labels, MALICIOUS)
    assert len(tried) == 9
    assert not torch.equal(tried[3], tried[6])
    assert not torch.equal(tried[0], tried[3])


def test_restarts_keep_the_best(model, stream):
    tta, (images, labels) = make(model, "tebn"), stream[0]
    attack = quick(objective=Indiscriminate(), restarts=4)
    best = attack.craft(tta, images, labels, MALICIOUS)
    benign = torch.arange(10) < 7
    reached = attack.objective.value(tta.surrogate()(best.images), labels, benign).item()
    assert best.value == pytest.approx(reached, rel=1e-5)
    for seed in range(3):
        one = dataclasses.replace(attack, restarts=2, seed=seed).craft(tta, images, labels, MALICIOUS)
        first = dataclasses.replace(attack, restarts=1)(tta, images, labels, MALICIOUS)
        assert one.value >= attack.objective.value(tta.surrogate()(first), labels, benign).item() - 1e-5


def test_early_stopping_stops_when_the_attack_succeeds_on_the_surrogate(stream):
    images = torch.full((10, 4), 0.5) + 0.01 * torch.randn(10, 4)
    labels = torch.zeros(10, dtype=torch.long)
    tta = medbn.adapt(Linear(4), "tebn", "mean")
    images[0] += 0.005
    whole = DIA(Targeted(0), steps=100).craft(tta, images, labels, MALICIOUS)
    early = DIA(Targeted(0), steps=100, check_every=5).craft(tta, images, labels, MALICIOUS)
    assert whole.steps == 100
    assert 0 < early.steps < 100
    hopeless = medbn.adapt(Linear(4), "source")  # nothing in the batch matters to it
    assert DIA(Targeted(0), steps=7, check_every=1).craft(hopeless, images, labels, MALICIOUS).steps == 7
    assert tta(early.images)[0].argmax() == 1


def test_the_callback_sees_every_step(model, stream):
    seen = []
    attack = quick(callback=lambda step, images, value: seen.append((step, images.clone(), value)))
    poisoned = attack(make(model, "tebn"), *stream[0], MALICIOUS)
    assert [step for step, _, _ in seen] == [1, 2, 3]
    assert torch.equal(seen[-1][1], poisoned[7:])
    assert all(isinstance(value, torch.Tensor) and not value.requires_grad for _, _, value in seen)


@pytest.mark.slow  # it counts all objects of the process
def test_memory_is_flat_in_the_number_of_steps(model, stream):
    alive = []

    def count(step, images, value):
        gc.collect()
        alive.append(sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects()))

    quick(steps=6, callback=count)(make(model, "tent"), *stream[0], MALICIOUS)
    assert len(set(alive[2:])) == 1


@pytest.mark.slow
def test_the_adaptive_attack_keeps_the_medians_together(model, stream):
    tta, (images, labels) = make(model, "tebn"), stream[0]

    def gap(batch):
        with medbn.observe(tta.model) as seen:
            tta(batch)
            medians = [
                [medbn.functional.statistics(o.input[part])[0] for part in (slice(0, 7), slice(7, 10))] for o in seen
            ]
            return sum((a - b).abs().mean().item() for a, b in medians)

    first = {}
    for weight in (0.0, 3.0):
        keep = lambda step, images, value, weight=weight: first.setdefault(weight, value.item())  # noqa: E731
        quick(alignment=weight, callback=keep)(tta, images, labels, MALICIOUS)
    start = DIA(steps=0)(tta, images, labels, MALICIOUS)
    assert first[3.0] == pytest.approx(first[0.0] - 3.0 * gap(start), rel=1e-4)

    plain, adaptive = (DIA(steps=30, alignment=w)(tta, images, labels, MALICIOUS) for w in (0.0, 50.0))
    assert gap(adaptive) < gap(plain)


def test_semi_white_box_knows_the_source_model_alone(model, stream):
    fresh, adapted = make(model, "tent", lr=0.05), make(model, "tent", lr=0.05)
    for images, _ in stream[:3]:
        adapted(images)
    images, labels = stream[3]
    semi = quick(knowledge="semi")
    assert torch.equal(semi(adapted, images, labels, MALICIOUS), quick()(fresh, images, labels, MALICIOUS))
    assert not torch.equal(quick()(adapted, images, labels, MALICIOUS), quick()(fresh, images, labels, MALICIOUS))


def test_channels_last_and_device(model, stream, device):
    images, labels = (t.to(device) for t in stream[0])
    tta = make(model.to(device), "tent")
    plain = quick()(tta, images, labels, MALICIOUS)
    last = quick()(tta, images.to(memory_format=torch.channels_last), labels, MALICIOUS)
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert last.device == images.device
    assert torch.equal(last[:7], images[:7])
    if device == "cpu":  # on CUDA the formats round differently, and signs flip
        assert ((last - plain).abs() < 1e-6).float().mean() > 0.95


def test_the_paper_s_defaults():
    attack = DIA()
    assert (attack.steps, attack.step_size, attack.epsilon) == (100, 1 / 255, 1.0)
    assert (attack.knowledge, attack.gradient, attack.unroll, attack.start) == ("white", "exact", 0, "grey")
    assert Indiscriminate().clamp == 5.0


def test_a_copy_of_the_victim_can_be_attacked_elsewhere(model, stream):
    tta = make(model, "tent")
    assert torch.equal(quick()(copy.deepcopy(tta), *stream[0], MALICIOUS), quick()(tta, *stream[0], MALICIOUS))
