"""All signals together: the false-alarm rate of a stream, and what begins it again."""

import random

import pytest

from medbn.monitor import Record, Watch


def records(values):
    return [Record(n, 0.0, "reference", one) for n, one in enumerate(values, start=1)]


def correlated(rng, signals):
    """Signals with heavy tails that share most of what moves them."""
    common = rng.gauss(0, 1)
    return {f"s{k}": (2 * common + rng.gauss(0, 1)) ** 3 for k in range(signals)}


@pytest.mark.slow
def test_any_of_several_signals_raises_a_false_alarm_with_probability_at_most_alpha():
    """120 streams at α = 0.2 may have 24 alarms; three standard deviations more are 37."""
    alarms = 0
    for seed in range(120):
        rng = random.Random(seed)
        watch = Watch(0.2, 20, ["s*"], seed)
        alarms += any(watch.update(batch, correlated(rng, 4)) for batch in range(1, 121))
    assert alarms <= 37


def test_a_signal_raises_one_alarm_and_again_after_it_is_rearmed():
    rng = random.Random(0)
    watch = Watch(0.01, records([correlated(rng, 2) for _ in range(50)]), ["s*"])
    raised = [name for batch in range(1, 21) for name in watch.update(batch, {"s0": 1e6, "s1": 0.0})]
    assert raised.count("s0") == 1
    assert watch.quiet_until("s0") in (0, 1, 2)
    watch.rearm()
    assert watch.evidence()["s0"] == pytest.approx(0.0)
    assert "s0" in [name for batch in range(21, 41) for name in watch.update(batch, {"s0": 1e6, "s1": 0.0})]


def test_shares_of_alpha_sum_to_alpha():
    watch = Watch(0.05, 10, ["s*"])
    watch.update(1, {"s0": 0.0})
    watch.divides_alpha = True
    spent = 0.0
    for _ in range(2000):
        spent += 10**-watch.threshold
        watch.begin_period()
    assert spent == pytest.approx(0.05, rel=1e-3)
