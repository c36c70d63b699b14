import copy
import dataclasses
import gc

import numpy as np
import pytest
import torch
from torch import nn

import medbn
from medbn.attacks import DIA, Indiscriminate, Targeted

from ..methods.table import LEARNING, METHODS, assert_same, make, state
from ..reference import ESTIMATORS
from .conftest import Linear

MALICIOUS = slice(7, 10)


def quick(**options):
    return DIA(**{"steps": 3, "step_size": 8 / 255, **options})


# --- every combination -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", [Targeted(2), Indiscriminate()], ids=["targeted", "indiscriminate"])
@pytest.mark.parametrize("knowledge", ["white", "semi"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_combination_crafts_and_touches_nothing_else(objective, knowledge, method, estimator, model, stream):
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


@pytest.mark.parametrize("gradient", ["exact", "straight_through", "smooth"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("objective", [Targeted(0), Indiscriminate(clamp=None)], ids=["targeted", "indiscriminate"])
def test_the_objective_rises(gradient, estimator, objective, model, stream):
    values = []
    attack = DIA(objective, steps=25, gradient=gradient, callback=lambda step, mine, value: values.append(value.item()))
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


# --- surrogates ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["tebn", "sema", "mdia", "sotta"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_exact_gradient_is_that_of_finite_differences(method, estimator, model, stream):
    tta = make(model, method, estimator).double()
    view, x = tta.surrogate(), stream[0][0].double().requires_grad_()
    (gradient,) = torch.autograd.grad(view(x)[0].sum(), x)
    g = torch.Generator().manual_seed(2)
    for _ in range(3):
        direction = torch.randn(x.shape, generator=g, dtype=torch.float64)
        h = 1e-8  # so that no median changes its element on the way
        with torch.no_grad():
            slope = (view(x + h * direction)[0].sum() - view(x - h * direction)[0].sum()) / (2 * h)
        assert (gradient * direction).sum().item() == pytest.approx(slope.item(), rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("estimator", ["median", "mad", "mad_scaled", "image_median"])
def test_smooth_lies_between_exact_and_straight_through(estimator, stream):
    layer = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten())
    tta = medbn.adapt(layer, "tebn", estimator)
    x = stream[0][0][:9].clone().requires_grad_()  # odd: a median is one image

    def gradient(kind, temperature=0.5):
        logits = tta.surrogate(kind, temperature=temperature)(x)
        torch.testing.assert_close(logits, tta(x.detach()))  # values are true
        return torch.autograd.grad(logits[0].sum(), x)[0]

    torch.testing.assert_close(gradient("smooth", 1e-6), gradient("exact"), rtol=1e-3, atol=1e-3)
    soft, exact = gradient("smooth"), gradient("exact")
    assert ((soft != 0).sum() >= (exact != 0).sum()).item()
    if estimator == "median":  # whose variance is the mean's but for the centre
        torch.testing.assert_close(
            torch.autograd.grad(
                medbn.functional.statistics(x, medbn.gradients.smooth(medbn.estimators.get("median"), 1e6))[0].sum(), x
            )[0],
            torch.full_like(x, 1 / (9 * 64)),
        )


def test_every_gradient_works_for_a_registered_estimator(model, stream):
    @medbn.estimators.register("trimmed")
    def trimmed(x, valid):
        rows = x.transpose(0, 1).flatten(1).sort(dim=1).values[:, 10:-10]
        return rows.mean(1), rows.var(1)

    try:
        tta = make(model, "tebn", "trimmed")
        batches = [quick(gradient=g)(tta, *stream[0], MALICIOUS) for g in ("exact", "straight_through", "smooth")]
        assert not torch.equal(batches[0], batches[1])
        assert not torch.equal(batches[1], batches[2])
    finally:
        medbn.estimators.unregister("trimmed")


# --- unrolling -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["tent", "eta", "eata", "sar"])
@pytest.mark.parametrize("estimator", ["mean", "median", "image_median"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd", "momentum"])
@pytest.mark.parametrize("gradient", ["exact", "straight_through", "smooth"])
def test_an_unrolled_surrogate_predicts_what_the_adapter_predicts_after(
    method, estimator, optimizer, gradient, model, stream
):
    if optimizer == "momentum":

        def optimizer(p, **options):
            return torch.optim.SGD(p, momentum=0.9, dampening=0.3, **options)

    tta = make(model, method, estimator, predict="after", optimizer=optimizer, lr=0.01, weight_decay=0.5)
    for images, _ in stream[:2]:
        tta(images)
    view = tta.surrogate(gradient, unroll=1)
    before = state(tta)
    x = stream[2][0].clone().requires_grad_()
    logits = view(x)
    (gradient,) = torch.autograd.grad(logits[0].sum(), x)
    assert gradient.isfinite().all()
    assert_same(state(tta), before)
    torch.testing.assert_close(tta(stream[2][0]), logits.detach(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("method", ["tent", "eta", "eata"])
def test_an_unrolled_gradient_is_that_of_finite_differences(method, model, stream):
    tta = make(model, method, "median", optimizer="sgd", lr=0.5).double()
    tta(stream[0][0].double())
    view, x = tta.surrogate(unroll=1), stream[1][0].double().requires_grad_()
    (gradient,) = torch.autograd.grad(view(x)[0].sum(), x)
    (without,) = torch.autograd.grad(tta.surrogate()(x)[0].sum(), x)
    g = torch.Generator().manual_seed(2)
    direction, h = torch.randn(x.shape, generator=g, dtype=torch.float64), 1e-8
    with torch.no_grad():
        slope = (view(x + h * direction)[0].sum() - view(x - h * direction)[0].sum()) / (2 * h)
    unrolled = (gradient * direction).sum().item()
    if method == "tent":  # the weights of ETA are constants to its gradient, and not to its value
        assert unrolled == pytest.approx(slope.item(), rel=1e-3)
    assert abs(unrolled - slope.item()) < abs((without * direction).sum().item() - slope.item())


def test_what_cannot_be_unrolled_says_so(model, stream):
    with pytest.raises(ValueError, match="SoTTA cannot be unrolled: it learns from its memory"):
        quick(unroll=1)(make(model, "sotta"), *stream[0], MALICIOUS)
    with pytest.raises(ValueError, match="unroll knows the steps of Adam and SGD, not of Adagrad"):
        quick(unroll=1)(make(model, "tent", optimizer=torch.optim.Adagrad), *stream[0], MALICIOUS)
    with pytest.raises(ValueError, match="unroll is 0 or 1"):
        quick(unroll=2)(make(model, "tent"), *stream[0], MALICIOUS)
    amsgrad = make(model, "tent", optimizer=lambda p, lr: torch.optim.Adam(p, lr=lr, amsgrad=True))
    with pytest.raises(ValueError, match="unroll does not know Adam with amsgrad"):
        quick(unroll=1)(amsgrad, *stream[0], MALICIOUS)
    tebn = make(model, "tebn")  # no step to unroll: the same
    assert torch.equal(quick(unroll=1)(tebn, *stream[0], MALICIOUS), quick()(tebn, *stream[0], MALICIOUS))


@pytest.mark.parametrize("method", [m for m in LEARNING if m != "sotta"])
def test_unrolled_attacks_run(method, model, stream):
    tta = make(model, method)
    before = state(tta)
    quick(unroll=1, alignment=1.0)(tta, *stream[0], MALICIOUS)
    poisoned = quick(unroll=1, restarts=2)(tta, *stream[0], MALICIOUS)
    assert_same(state(tta), before)
    assert not torch.equal(poisoned, quick(restarts=2)(tta, *stream[0], MALICIOUS))


# --- the loop's options ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["grey", "offset", "clean", "random"])
@pytest.mark.parametrize("epsilon", [1.0, 8 / 255])
def test_starts_and_limits(start, epsilon, model, stream):
    images, labels = stream[0]
    tta = make(model, "tebn")
    first = DIA(steps=0, start=start, epsilon=epsilon)(tta, images, labels, MALICIOUS)[7:]
    last = DIA(steps=20, start=start, epsilon=epsilon)(tta, images, labels, MALICIOUS)[7:]
    for mine in (first, last):
        assert (mine - images[7:]).abs().max() <= epsilon + 1e-6
        assert mine.min() >= 0
        assert mine.max() <= 1
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
    attack = quick(restarts=3, callback=lambda step, mine, value: tried.append(mine.clone()))
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


def test_early_stopping_stops_when_the_surrogate_is_fooled(stream):
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
    attack = quick(callback=lambda step, mine, value: seen.append((step, mine.clone(), value)))
    poisoned = attack(make(model, "tebn"), *stream[0], MALICIOUS)
    assert [step for step, _, _ in seen] == [1, 2, 3]
    assert torch.equal(seen[-1][1], poisoned[7:])
    assert all(isinstance(value, torch.Tensor) and not value.requires_grad for _, _, value in seen)


def test_memory_is_flat_in_the_number_of_steps(model, stream):
    alive = []

    def count(step, mine, value):
        gc.collect()
        alive.append(sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects()))

    quick(steps=12, callback=count)(make(model, "tent"), *stream[0], MALICIOUS)
    assert len(set(alive[2:])) == 1


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
        keep = lambda step, mine, value, weight=weight: first.setdefault(weight, value.item())  # noqa: E731
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


# --- which images, and wrong use -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "malicious",
    [
        slice(7, 10),
        [7, 8, 9],
        torch.tensor([7, 8, 9]),
        torch.arange(10) >= 7,
        slice(-3, None),
        [-1, -2, -3],
        np.arange(10) >= 7,
        (np.arange(10) >= 7).tolist(),
        [7, 8, 8, 9],
    ],
    ids=["slice", "list", "indices", "mask", "from the end", "negative", "numpy mask", "list mask", "twice"],
)
def test_malicious_images_can_be_named_in_many_ways(malicious, model, stream):
    tta = make(model, "tebn")
    assert torch.equal(quick()(tta, *stream[0], malicious), quick()(tta, *stream[0], MALICIOUS))


@pytest.mark.parametrize(
    ("malicious", "message"),
    [
        ([], "names no image"),
        (slice(10, 12), "names no image"),
        (slice(None), "names all 10 images; there is nobody left"),
        ([3, 10], r"outside of a batch of 10: \[3, 10\]"),
        (torch.zeros(9, dtype=torch.bool), r"must mark each of 10 images, got a mask of shape \(9,\)"),
        ([0, 1], "the target, image 0, is malicious itself"),
    ],
)
def test_bad_choices_are_explained(malicious, message, model, stream):
    with pytest.raises(ValueError, match=message):
        quick()(make(model, "tebn"), *stream[0], malicious)


def test_bad_batches_are_explained(model, stream):
    tta, (images, labels) = make(model, "tebn"), stream[0]
    with pytest.raises(ValueError, match=r"in \[0, 1\], and these go from -1 to 1.*into the model, as its first layer"):
        quick()(
            tta,
            (2 * images - 1).clamp(-1, 1).index_fill(0, torch.tensor(0), -1).index_fill(0, torch.tensor(1), 1),
            labels,
            MALICIOUS,
        )
    with pytest.raises(ValueError, match="in \\[0, 1\\]"):
        quick()(tta, images.index_fill(0, torch.tensor(3), torch.nan), labels, MALICIOUS)
    for wrong in ((torch.arange(10) >= 7).byte(), [7.9, 8.2]):
        with pytest.raises(TypeError, match="slice, whole-number indices or a boolean mask"):
            quick()(tta, images, labels, wrong)
    with pytest.raises(TypeError, match="images and labels must be tensors, got Tensor and list"):
        quick()(tta, images, labels.tolist(), MALICIOUS)
    with pytest.raises(
        TypeError, match=r"an attack is on an adapter, made by medbn.adapt\(model, ...\); got a SmallResNet"
    ):
        quick()(model, images, labels, MALICIOUS)
    with pytest.raises(ValueError, match="empty batch"):
        quick()(tta, images[:0], labels[:0], MALICIOUS)
    with pytest.raises(ValueError, match="target_class 99"):
        quick(objective=Targeted(0, 99))(tta, images, labels, MALICIOUS)
    with pytest.raises(ValueError, match=r"Targeted takes labels \(B,\), .*TargetedPixel"):
        quick()(tta, images, torch.zeros(10, 2, 2, dtype=torch.long), MALICIOUS)
    with pytest.raises(ValueError, match=r"a class for each of 10 images, got torch.int64 \(9,\)"):
        quick()(tta, images, labels[:9], MALICIOUS)
    with pytest.raises(TypeError, match=r"floating point images.*uint8"):
        quick()(tta, (images * 255).byte(), labels, MALICIOUS)
    with pytest.raises(ValueError, match="image 12, is not in a batch of 10"):
        quick(objective=Targeted(12))(tta, images, labels, MALICIOUS)
    with pytest.raises(ValueError, match=r"is of class .* already"):
        quick(objective=Targeted(0, target_class=int(labels[0])))(tta, images, labels, MALICIOUS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"knowledge": "black"}, "unknown knowledge 'black'.*semi, white"),
        ({"gradient": "exakt"}, "unknown gradient 'exakt'.*Did you mean 'exact'"),
        ({"start": "gray"}, "unknown start 'gray'.*Did you mean 'grey'"),
        ({"steps": -1}, "steps must be a whole number of at least 0, got -1"),
        ({"restarts": 0}, "restarts must be a whole number of at least 1"),
        ({"epsilon": 0.0}, "epsilon must be positive"),
        ({"temperature": 0.0}, "temperature is a positive number"),
        ({"step_size": float("nan")}, "step_size must be positive"),
        ({"alignment": -1.0}, "alignment is a weight"),
        ({"steps": 2.5}, "steps must be a whole number"),
    ],
)
def test_wrong_options_are_explained(options, message):
    with pytest.raises(ValueError, match=message):
        DIA(**options)


def test_the_paper_s_defaults():
    attack = DIA()
    assert (attack.steps, attack.step_size, attack.epsilon) == (100, 1 / 255, 1.0)
    assert (attack.knowledge, attack.gradient, attack.unroll, attack.start) == ("white", "exact", 0, "grey")
    assert Indiscriminate().clamp == 5.0


def test_a_copy_of_the_victim_can_be_attacked_elsewhere(model, stream):
    tta = make(model, "tent")
    assert torch.equal(quick()(copy.deepcopy(tta), *stream[0], MALICIOUS), quick()(tta, *stream[0], MALICIOUS))
