"""Bounded influence: gradients of single images against one pass per image, and the bounds as properties."""

import copy
import math
import warnings

import pytest
import torch
from torch import nn

pytest.importorskip("hypothesis")
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import medbn
from medbn.methods._influence import ImageGradients, combine

from .conftest import small_model
from .table import LEARNING, assert_same, make, state

CLIP, LR, IMAGES = 0.5, 0.01, 20  # more than 16, so that a call with one image less is learned from too
PER_IMAGE = ["tent", "eta", "eata", "deyo"]  # whose pulls depend on no other image
OF_BATCH = [m for m in LEARNING if m not in ("sotta", "rotta", "note")]


class Mixed(nn.Module):
    """Layers of every kind that are learned, with an activation in place and a layer that runs twice."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.conv, self.norm, self.group = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GroupNorm(2, 4)
        self.act = nn.ReLU(inplace=True)
        self.layer = nn.LayerNorm((6, 6))
        self.instance = nn.InstanceNorm2d(4, affine=True)
        self.flat, self.fc = nn.LayerNorm(4), nn.Linear(4, 5)
        for p in (p for m in (self.norm, self.group, self.layer, self.instance, self.flat) for p in m.parameters()):
            nn.init.normal_(p)

    def forward(self, x):
        x = self.act(self.norm(self.conv(x)))
        x = self.instance(self.layer(self.group(x)))
        x = self.act(self.group(x)).mean(dim=(2, 3))
        return self.fc(self.flat(x))


def images(seed, count=IMAGES):
    return torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


@pytest.mark.slow
@pytest.mark.parametrize("build", [Mixed, small_model])
def test_parts_of_images_are_the_gradients_of_one_image_at_a_time(build):
    tta = medbn.adapt(build().double(), "tent", "median", influence="clip")
    x = images(0, 5).double()
    tracker = ImageGradients(tta.model, tta.learned)
    with tracker.watch(tta.model):
        logits = tta.model(x)
    weights = torch.tensor([1.0, -2.0, 0.0, 3.0, 0.5]).double()
    (pulls,) = tracker.of((weights * logits.logsumexp(1)).sum(), list(tta.learned.values()))
    assert pulls.keys() == tta.learned.keys()
    for i in range(5):
        alone = torch.autograd.grad(weights[i] * tta.model(x[i : i + 1]).logsumexp(1).sum(), list(tta.learned.values()))
        for name, gradient in zip(tta.learned, alone, strict=True):
            torch.testing.assert_close(pulls[name][i], gradient, rtol=1e-6, atol=1e-9, msg=name)


def test_parts_add_up_to_the_gradient_also_with_statistics_of_the_batch():
    tta = medbn.adapt(small_model().double(), "tent", "mean", influence="clip", past_momentum=None)
    x = images(0, 6).double()
    tracker = ImageGradients(tta.model, tta.learned)
    with tracker.watch(tta.model):
        loss = tta.model(x).logsumexp(1).mean()
    whole = torch.autograd.grad(loss, list(tta.learned.values()), retain_graph=True)
    (pulls,) = tracker.of(loss, list(tta.learned.values()))
    for pull, gradient in zip(pulls.values(), whole, strict=True):
        torch.testing.assert_close(pull.sum(0), gradient)


def test_a_layer_with_another_use_of_its_weight_is_refused():
    class OddLayerNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(7))

        def forward(self, x):
            return x * self.weight.sum()

    with pytest.warns(UserWarning, match="BatchNorm"):
        tta = medbn.adapt(nn.Sequential(OddLayerNorm(), nn.Flatten(), nn.Linear(192, 3)), "tent", influence="clip")
    with pytest.raises(ValueError, match=r"influence.*OddLayerNorm"):
        tta(images(0))


# --- combining parts --------------------------------------------------------------------------------------------------

ROWS = st.lists(st.lists(st.floats(-1e3, 1e3, width=32), min_size=3, max_size=3), min_size=3, max_size=9)


@pytest.mark.slow
@given(ROWS, st.floats(0.01, 100))
def test_clipped_parts_are_scaled_to_their_limit(rows, limit):
    pulls = torch.tensor(rows)
    expected = torch.zeros(3, dtype=torch.float64)
    for row in pulls.double():
        norm = row.norm().item()
        expected += row * min(1.0, limit / len(rows) / norm) if norm else 0.0
    found = combine({"a": pulls[:, :2].clone(), "b": pulls[:, 2:].clone()}, "clip", limit)
    torch.testing.assert_close(torch.cat([found["a"], found["b"]]).double(), expected, rtol=1e-3, atol=1e-5)
    assert expected.norm() <= limit * (1 + 1e-6)


@given(ROWS, st.integers(0, 8), st.lists(st.sampled_from([0.5, -1e7, 1e7, 3.0]), min_size=3, max_size=3))
def test_a_median_stays_between_its_neighbours(rows, which, other):
    pulls = torch.tensor(rows) + 0.001
    which %= len(rows)
    limit = 1e12  # so that nothing is clipped
    replaced = pulls.clone()
    replaced[which] = torch.tensor(other)
    rest = pulls[torch.arange(len(rows)) != which].sort(dim=0).values
    middle = (len(rest) - 1) / 2
    low, high = rest[max(math.floor(middle - 0.5), 0)], rest[min(math.ceil(middle + 0.5), len(rest) - 1)]
    for each in (pulls, replaced):
        median = combine({"w": each}, "median", limit)["w"] / len(rows)
        assert (median >= low - 1e-3 - 1e-4 * low.abs()).all()
        assert (median <= high + 1e-3 + 1e-4 * high.abs()).all()


@pytest.mark.parametrize("kind", ["clip", "median"])
def test_what_is_not_finite_has_no_part(kind):
    pulls = torch.tensor([[0.1, 0.2], [math.nan, 1.0], [0.3, 0.1], [math.inf, 0.0], [1e30, 1e30]])
    kept = torch.tensor([[0.1, 0.2], [0.0, 0.0], [0.3, 0.1], [0.0, 0.0], [0.0, 0.0]])
    torch.testing.assert_close(combine({"w": pulls}, kind, 9.0)["w"], combine({"w": kept}, kind, 9.0)["w"])
    assert (combine({"w": torch.zeros(4, 2)}, kind, 1.0)["w"] == 0).all()


# --- one image is replaced by anything --------------------------------------------------------------------------------

REPLACEMENTS = {
    "nan": lambda x: torch.full_like(x, math.nan),
    "infinite": lambda x: torch.full_like(x, -math.inf),
    "huge": lambda x: 1e6 * torch.ones_like(x),
    "black": torch.zeros_like,
    "other": lambda x: 1 - x.flip(0),
    "contrast": lambda x: 20 * (x - 0.5),
}


def after_one_step(tta, x):
    before = {name: p.detach().clone() for name, p in tta.learned.items()}
    snapshot = tta.snapshot()
    tta(x)
    moved = torch.cat([(p.detach() - before[name]).flatten() for name, p in tta.learned.items()])
    tta.restore(snapshot)
    return moved.double()


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("method", PER_IMAGE)
@settings(max_examples=6, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(
    which=st.integers(0, IMAGES - 1),
    kind=st.sampled_from(sorted(REPLACEMENTS)),
    seed=st.integers(0, 50),
    batches=st.sampled_from([0, 1, 6]),
)
def test_replacing_one_image_moves_the_parameters_no_further_than_stated(method, optimizer, which, kind, seed, batches):
    options = {"redundancy": 1.01} if method in ("eta", "eata") else {}  # otherwise ETA often learns from no image
    tta = make(small_model(), method, "median", influence="clip", clip=CLIP, lr=LR, optimizer=optimizer, **options)
    for number in range(batches):  # any state of the moments
        tta(images(100 + number))
    x = images(seed)
    replaced = x.clone()
    replaced[which] = REPLACEMENTS[kind](x[which])
    first, second = after_one_step(tta, x), after_one_step(tta, replaced)
    dimensions = len(first)
    bound = LR * (2 * CLIP / IMAGES if optimizer == "sgd" else 2.5 * math.sqrt(dimensions) / IMAGES)
    assert first.norm() > 0 or method != "tent"  # the others may select no image
    assert (first - second).norm() <= bound * (1 + 1e-3) + 1e-9


def test_without_the_option_one_image_moves_them_further():
    moves = []
    for options in ({}, {"influence": "clip", "clip": CLIP}):
        tta = make(small_model(), "tent", "mean", lr=LR, optimizer="sgd", **options)
        x = images(0)
        replaced = x.clone()
        replaced[3] = 1e6
        moves.append((after_one_step(tta, x) - after_one_step(tta, replaced)).norm())
    assert moves[0] > LR * 2 * CLIP / IMAGES > moves[1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["clip", "median"])
@pytest.mark.parametrize("past_momentum", [0.05, None])
@pytest.mark.parametrize("method", LEARNING)
def test_no_gradient_is_longer_than_stated(method, past_momentum, kind, monkeypatch):
    options = {"confidence": 0.0} if method == "sotta" else {}
    limit = 1e-3
    tta = make(small_model(), method, "median", influence=kind, clip=limit, past_momentum=past_momentum, **options)
    lengths, found = [], tta.bounded_gradients

    def spy(*args, **keywords):
        gradients = found(*args, **keywords)
        lengths.append(torch.cat([g.flatten() for g in gradients]).norm().item())
        return gradients

    monkeypatch.setattr(tta, "bounded_gradients", spy)
    if method == "eata":
        monkeypatch.setattr(tta, "unbounded", lambda memory, learned: torch.zeros(()))
    for seed in range(3):
        tta(images(seed))
    assert lengths
    dimensions = sum(p.numel() for p in tta.learned.values())
    longest = limit * (1 if kind == "clip" else math.sqrt(dimensions))
    assert 0 < max(lengths) <= longest * (1 + 1e-4)


def test_the_ascent_of_sam_is_bounded_too():
    tta = make(small_model(), "sar", influence="clip", clip=CLIP)
    rho, g = 0.05, torch.Generator().manual_seed(0)
    for scale in (1e-6, 1e-3, 0.05, 0.5):
        first = torch.randn(30, generator=g)
        first *= scale / first.norm()
        move = torch.randn(30, generator=g)
        move *= 2 * CLIP / IMAGES / move.norm()
        ascents = [tta.perturbation([each], rho)[0] for each in (first, first + move)]
        assert (ascents[0] - ascents[1]).norm() <= 20 * rho / IMAGES * (1 + 1e-5)
        assert ascents[0].norm() <= rho * (1 + 1e-5)


# --- predictions and state --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", OF_BATCH)
def test_no_prediction_depends_on_another_image_of_its_call(method):
    options = {"prior": "none"} if method == "roid" else {}
    tta = make(small_model(), method, "median", influence="clip", **options)
    tta(images(0))
    before, x = tta.snapshot(), images(1)
    first = tta(x)
    tta.restore(before)
    other = x.clone()
    other[4:] = images(2)[4:]
    torch.testing.assert_close(tta(other)[:4], first[:4])


@pytest.mark.slow
@pytest.mark.parametrize("method", OF_BATCH)
def test_statistics_are_those_of_past(method):
    tta, past = make(small_model(), method, "image_median", influence="clip", lr=0.0), make(small_model(), "past")
    past = medbn.adapt(small_model(), "past", "image_median")
    for seed in range(7):  # five of them have a second pass
        tta(images(seed)), past(images(seed))
        for name, layer in past.layers.items():
            torch.testing.assert_close(tta.layers[name].ema_mean, layer.ema_mean)
            torch.testing.assert_close(tta.layers[name].ema_var, layer.ema_var)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["clip", "median"])
@pytest.mark.parametrize("method", LEARNING)
def test_the_state_is_all_that_adapts(method, kind, tmp_path):
    options = {"influence": kind, "clip": 0.1}
    tta, other = (make(small_model(), method, "median", **options) for _ in range(2))
    source = state(tta)
    for seed in range(2):
        tta(images(seed))
    snapshot, twin = tta.snapshot(), copy.deepcopy(tta)
    tta.save(tmp_path / "x.safetensors")
    other.load(tmp_path / "x.safetensors")
    expected = tta(images(7))
    assert torch.equal(twin(images(7)), expected)
    assert torch.equal(other(images(7)), expected)
    after = state(tta)
    assert_same(state(other), after)
    assert_same(state(twin), after)
    tta.restore(snapshot)
    tta.surrogate()(images(3))
    assert torch.equal(tta(images(7)), expected)
    assert_same(state(tta), after)
    tta.reset()
    assert_same(state(tta), source)


def test_a_call_that_raises_has_changed_nothing():
    tta = make(small_model(), "tent", influence="clip")
    tta(images(0))
    before = state(tta)
    tta._bounded = tta.take_step
    tta.take_step = lambda gradients: (tta._bounded(gradients), 1 / 0)
    with pytest.raises(ZeroDivisionError):
        tta(images(1))
    assert_same(state(tta), before)
    copy.deepcopy(tta.model)


def test_a_damaged_count_is_refused():
    tta = make(small_model(), "tent", influence="clip")
    snapshot = tta.snapshot()
    snapshot["memory"]["past_images"] = -3
    with pytest.raises(ValueError, match="past_images"):
        tta.restore(snapshot)


def test_small_calls_are_collected_and_learned_from_together():
    tta, twin = (make(small_model(), "tent", influence="clip") for _ in range(2))
    x, source = images(0), state(tta)
    learned = [name for name in source if "learned" in name]
    for number, call in enumerate(x.split(5), start=1):
        tta(call)
        assert all(torch.equal(state(tta)[name], source[name]) for name in learned) == (number < 4)
    twin(x)
    assert_same(state(tta), state(twin))


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("kind", ["clip", "median"])
@pytest.mark.parametrize("method", ["tent", "eta", "eata", "sar", "deyo", "roid"])
def test_an_unrolled_surrogate_takes_the_bounded_step(method, kind, optimizer):
    options = {"influence": kind, "clip": 0.05, "past_momentum": None, "predict": "after", "lr": 0.05}
    tta = make(small_model(), method, "median", optimizer=optimizer, **options)
    tta(images(0))
    x = images(1).requires_grad_()
    before = state(tta)
    logits = tta.surrogate(unroll=1)(x)
    (gradient,) = torch.autograd.grad(logits[0].sum(), x)
    assert gradient.isfinite().all()
    assert_same(state(tta), before)
    torch.testing.assert_close(tta(x.detach()), logits.detach(), rtol=1e-3, atol=1e-3)


def test_wrong_options_are_refused():
    for message, options in (
        ("clip, median", {"influence": "mean"}),
        ("clip", {"influence": "clip", "clip": 0.0}),
        ("momentum", {"influence": "clip", "past_momentum": 2.0}),
    ):
        with pytest.raises(ValueError, match=message):
            make(small_model(), "tent", **options)
    with pytest.raises(ValueError, match="unroll"), warnings.catch_warnings():
        make(small_model(), "cotta", influence="clip").surrogate(unroll=1)(images(0))
