"""The bound over statistics: its boxes contain what images do, and are reached."""

import pytest
import torch

pytest.importorskip("hypothesis")
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import medbn
from medbn.attacks import DIA, Indiscriminate, StatisticsBound, Targeted
from medbn.attacks._boxes import between, box_of
from medbn.attacks.objectives import Entropy
from medbn.functional import statistics

from ..methods.table import assert_same, make, state

MALICIOUS = slice(7, 10)
ROBUST = ["median", "mad", "mad_scaled", "image_median"]
VALUES = st.sampled_from([-1e4, -3.0, -1.0, 0.0, 0.3, 1.0, 50.0, 1e4])


@settings(deadline=None, max_examples=60, phases=(Phase.explicit, Phase.generate))
@given(
    kernel=st.sampled_from(ROBUST),
    seed=st.integers(0, 1000),
    sizes=st.tuples(st.integers(3, 9), st.integers(0, 8), st.sampled_from([1, 2, 5])),
    fills=st.lists(VALUES, min_size=8, max_size=8),
)
def test_whatever_malicious_images_are_the_statistics_lie_in_the_box(kernel, seed, sizes, fills):
    benign, malicious, side = sizes
    malicious = min(malicious, benign - 1)  # a minority
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(benign, 2, side, side, generator=g)
    hers = torch.randn(malicious, 2, side, side, generator=g) * 0.5
    for number in range(malicious):
        hers[number] = fills[number] if fills[number] != 0.3 else hers[number]
    centre, variance = statistics(torch.cat([x, hers]), kernel)
    box = box_of(x, malicious, kernel)
    assert (centre >= box.low - 1e-5).all()
    assert (centre <= box.high + 1e-5).all()
    least, most = box.variance(centre)
    assert (variance >= least * (1 - 1e-4) - 1e-6).all()
    if kernel != "median":  # whose variance has no upper bound
        assert (variance <= most * (1 + 1e-4) + 1e-6).all()


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize(("count", "others"), [(5, 0), (5, 2), (6, 3), (7, 3), (4, 3)])
def test_limits_of_a_median_are_reached(count, others, lower):
    values = torch.rand(3, count, generator=torch.Generator().manual_seed(count))
    low, high = between(values, others, torch.full((3,), 100.0), lower=lower)
    for fill, limit in ((-1e9, low), (1e9, high)):
        ordered = torch.cat([values, torch.full((3, others), fill)], dim=1).sort(dim=1).values
        total = count + others
        middle = ordered[:, (total - 1) // 2] if lower else (ordered[:, (total - 1) // 2] + ordered[:, total // 2]) / 2
        bounded = middle.abs() < 1e8
        torch.testing.assert_close(limit[bounded], middle[bounded])
        assert (limit[~bounded].abs() > 1).all()


def test_a_majority_and_a_mean_have_no_bounds():
    x = torch.randn(4, 2, 3, 3)
    for kernel, malicious in (("mean", 1), ("median", 5), ("image_median", 5)):
        box = box_of(x, malicious, kernel)
        assert (box.high - box.low > 500 * x.std()).all()


@pytest.mark.parametrize("estimator", ["mean", *ROBUST, "image_median@0.6", "median@0.5"])
def test_without_malicious_values_the_statistics_are_their_own(estimator, model, stream):
    images, labels = stream[0]
    tta = make(model, "tebn", estimator)
    bound = StatisticsBound(Indiscriminate(), steps=0, restarts=1)
    boxes, benign = medbn.attacks.statistics_bound, images[:7]

    def no_others(x, malicious, kernel):
        return box_of(x, 0, kernel)

    original, boxes.box_of = boxes.box_of, no_others
    try:
        reached = bound(tta, images, labels, MALICIOUS)
    finally:
        boxes.box_of = original
    with torch.no_grad():
        torch.testing.assert_close(reached.logits, tta.surrogate()(benign), rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["median", "image_median", "image_median@0.6"])
def test_it_goes_beyond_what_crafted_images_reach(estimator, model, stream):
    images, labels = stream[0]
    tta = make(model, "tebn", estimator)
    before = state(tta)
    reached = StatisticsBound(Targeted(0), steps=30)(tta, images, labels, MALICIOUS)
    assert_same(state(tta), before)
    crafted = DIA(Targeted(0), steps=20, step_size=0.05, gradient="smooth").craft(tta, images, labels, MALICIOUS)
    assert reached.value > crafted.value
    start = StatisticsBound(Targeted(0), steps=0)(tta, images, labels, MALICIOUS)
    assert reached.value > start.value
    other = images.clone()
    other[7:] = 0.5  # malicious images are not read
    again = StatisticsBound(Targeted(0), steps=30)(tta, other, labels, MALICIOUS)
    assert torch.equal(again.logits, reached.logits)


@pytest.mark.slow
def test_a_larger_prior_leaves_less(model, stream):
    images, labels = stream[0]
    gains, values = [], []
    for prior in (0.5, 0.95, 1.0):
        tta = make(model, "tebn", f"image_median@{prior}")
        options = {"restarts": 1, "steps": 8}
        values += [StatisticsBound(**{**options, "steps": n})(tta, images, labels, MALICIOUS).value for n in (0, 8)]
        gains.append(values[-1] - values[-2])
    assert gains[0] > gains[1] > gains[2] == 0
    with torch.no_grad():
        logits = make(model, "source").model(images)
    assert values[-1] == pytest.approx(Targeted(0).value(logits, labels, torch.ones(10) > 0).item(), rel=1e-3)


@pytest.mark.slow
def test_it_says_how_often_the_target_falls(model, stream):
    bound = StatisticsBound(Targeted(0), steps=3, restarts=1)
    tta, twin = make(model, "sema", "median"), make(model, "sema", "median")
    rate, count = bound.rate(tta, stream, MALICIOUS)
    harms = []
    for images, labels in stream:
        harms.append(bound(twin, images, labels, MALICIOUS).harm)
        twin(images)
    assert (rate, count) == (sum(harms) / 4, 4)
    assert set(harms) <= {0.0, 1.0}


def test_wrong_uses_are_refused(model, stream):
    for options in ({"steps": -1}, {"restarts": 0}, {"step_size": 0.0}, {"objective": Entropy()}):
        with pytest.raises(ValueError, match=r"bound|steps"):
            StatisticsBound(**options)
    with pytest.raises(ValueError, match="no batch"):
        StatisticsBound().rate(make(model, "tebn"), [], MALICIOUS)

    @medbn.estimators.register("of-mine")
    def of_mine(x, valid):
        return x.mean((0, 2, 3)), x.var((0, 2, 3))

    try:
        with pytest.raises(ValueError, match="of-mine"):
            StatisticsBound()(make(model, "tebn", "of-mine"), *stream[0], MALICIOUS)
    finally:
        medbn.estimators.unregister("of-mine")
