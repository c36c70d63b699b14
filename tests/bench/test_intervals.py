"""Intervals against closed forms, scipy, and their coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest

from medbn.bench import intervals
from medbn.bench.intervals import bootstrap, paired_difference, wilson

stats = pytest.importorskip("scipy.stats")


@pytest.mark.parametrize(("hits", "count"), [(0, 1), (0, 50), (1, 10), (25, 50), (49, 50), (50, 50), (300, 1000)])
def test_wilson_is_scipys(hits, count):
    expected = stats.binomtest(hits, count).proportion_ci(0.95, "wilson")
    interval = wilson(hits, count)
    assert interval.value == hits / count
    assert interval.low == pytest.approx(expected.low, abs=1e-12)
    assert interval.high == pytest.approx(expected.high, abs=1e-12)


@pytest.mark.parametrize(("hits", "count"), [(0, 0), (3, 2), (-1, 5)])
def test_wilson_refuses_nonsense(hits, count):
    with pytest.raises(ValueError, match="hits"):
        wilson(hits, count)


def test_bootstrap_is_that_of_scipy_and_always_the_same():
    rng = np.random.default_rng(1)
    wrong = rng.integers(20, 80, 40)
    interval = bootstrap(wrong.tolist(), [160] * 40)
    assert interval == bootstrap(wrong.tolist(), [160] * 40)
    expected = stats.bootstrap((wrong / 160,), np.mean, method="percentile", rng=rng).confidence_interval
    assert interval.value == pytest.approx((wrong / 160).mean())
    assert interval.low == pytest.approx(expected.low, abs=0.005)
    assert interval.high == pytest.approx(expected.high, abs=0.005)


def test_fewer_than_five_batches_have_no_interval():
    for few in ([16], [16, 32], [16, 32, 8, 24]):
        for interval in (
            bootstrap(few, [160] * len(few)),
            paired_difference([0.0] * len(few), [one / 160 for one in few]),
        ):
            assert interval.value == pytest.approx(sum(few) / len(few) / 160)
            assert math.isnan(interval.low)
            assert math.isnan(interval.high)
    five = bootstrap([16, 32, 8, 24, 16], [160] * 5)
    assert five.low < five.value < five.high


def test_batches_are_drawn_within_streams_where_these_have_several():
    wrong, images, streams = [10, 12, 90, 88, 11, 89], [100] * 6, ["a", "a", "b", "b", "a", "b"]
    within, across = bootstrap(wrong, images, streams), bootstrap(wrong, images)
    assert within.value == across.value == 0.5
    assert within.high - within.low < 0.02 + 1e-9
    assert across.high - across.low > 0.5
    single = ["a", "b", "b", "b", "b", "b"]  # "a" has but one
    assert bootstrap(wrong, images, single) == across


def test_paired_differences_ignore_what_both_share():
    rng = np.random.default_rng(0)
    hard = rng.uniform(0, 0.8, 30)
    interval = paired_difference(hard.tolist(), (hard - 0.1).tolist())
    assert interval.value == pytest.approx(-0.1)
    assert interval.high - interval.low < 1e-9
    with pytest.raises(ValueError, match="1 and 0"):
        paired_difference([1.0], [])


def test_bootstrap_covers_the_true_rate_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        rates = rng.beta(20, 60, 40)
        interval = bootstrap(rng.binomial(160, rates).tolist(), [160] * 40)
        covered += interval.low <= 0.25 <= interval.high
    assert 180 <= covered <= 199


def test_the_constant_is_the_normal_quantile():
    assert pytest.approx(stats.norm.ppf(0.975)) == intervals.Z
