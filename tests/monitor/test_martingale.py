import math
import random

import pytest

from medbn.monitor import Martingale

from ..tiers import slow


def false_alarms(draw, threshold, streams, length, reference=20, side="both"):
    """How many streams without a change reach a capital of ``threshold`` at any time."""
    count = 0
    for seed in range(streams):
        values = draw(random.Random(seed), reference + length)
        martingale = Martingale(values[:reference], side=side, seed=seed)
        count += any(
            martingale.update(value) is not None and martingale.capital >= threshold for value in values[reference:]
        )
    return count


DRAWS = {
    "normal": lambda rng, n: [rng.gauss(0, 1) for _ in range(n)],
    "heavy tails": lambda rng, n: [rng.paretovariate(0.5) for _ in range(n)],
    "mostly ties": lambda rng, n: [float(rng.random() < 0.1) for _ in range(n)],
    # Exchangeable but dependent: all values of a stream share a location that differs between streams.
    "shared location": lambda rng, n: [centre + rng.gauss(0, 1) for centre in [rng.gauss(0, 10)] for _ in range(n)],
}


@pytest.mark.parametrize("name", ["normal", *slow(*(name for name in DRAWS if name != "normal"))])
def test_streams_without_a_change_reach_c_with_probability_at_most_1_over_c(name):
    """Ville's inequality. With 60 streams and 1/c = 0.1, more than 13 has a probability below 0.3 %."""
    assert false_alarms(DRAWS[name], threshold=10.0, streams=60, length=150) <= 13


@pytest.mark.slow
def test_the_rate_at_the_bound_over_a_thousand_streams():
    """At 1/c = 0.2 a thousand streams may have 200 alarms; three standard deviations more are 238.

    A capital that used its ranks twice, or bets that are no densities, would be far above.
    """
    assert false_alarms(DRAWS["normal"], threshold=5.0, streams=1000, length=300, side="above") <= 238


def test_p_values_are_uniform_ranks_with_ties_broken_at_random():
    martingale = Martingale([0.0] * 9)
    draws = [Martingale([0.0] * 9, seed=seed).update(0.0) for seed in range(400)]
    assert abs(sum(draws) / len(draws) - 0.5) < 0.06
    assert 0 < martingale.update(1.0) <= 0.1
    assert martingale.update(-1.0) > 1 - 1 / 11


@pytest.mark.parametrize("side", ["above", "both"])
def test_bets_are_densities(side):
    """The expected factor of one bet under a uniform p-value is 1."""
    grid = 2000
    expected = sum(factor(side, (k + 0.5) / grid) for k in range(grid)) / grid
    assert expected == pytest.approx(1.0, abs=1e-9)


def factor(side, p):
    """The factor by which one bet multiplies what is bet, apart from what still waits."""
    martingale = Martingale(side=side)
    martingale._bet(p)
    waiting = (1 + 1 / 20) ** -0.5
    return (martingale.capital - waiting) / (1 - waiting)


@pytest.mark.parametrize("late", [0, 500])
def test_a_change_is_found_within_ten_batches_early_and_late(late):
    rng = random.Random(0)
    martingale = Martingale([rng.gauss(0, 1) for _ in range(50)], side="above")
    for _ in range(late):
        martingale.update(rng.gauss(0, 1))
    assert martingale.capital < 100
    delay = next(k for k in range(1, 100) if martingale.update(rng.gauss(8, 1)) and martingale.capital >= 1000)
    assert delay <= 10
    assert abs(martingale.quiet_until - late) <= 2


def test_both_sides_find_a_fall_and_one_side_does_not():
    capital = {}
    for side in ("above", "both"):
        rng = random.Random(1)
        martingale = Martingale([rng.gauss(0, 1) for _ in range(50)], side=side)
        for _ in range(12):
            martingale.update(rng.gauss(-8, 1))
        capital[side] = martingale.capital
    assert capital["both"] > 1000
    assert capital["above"] < 2


def test_values_that_are_not_finite_are_left_out_and_nothing_overflows():
    martingale = Martingale([1.0, math.nan, 2.0])
    assert len(martingale.values) == 2
    assert martingale.update(math.nan) is None
    assert martingale.bets == 0
    for k in range(400):
        martingale.update(float(k**3 + 10))
    assert martingale.log_capital > 300
    assert martingale.capital > 0


def test_a_wrong_side_is_refused():
    with pytest.raises(ValueError, match="above"):
        Martingale(side="below")
