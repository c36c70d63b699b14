"""Test whether a signal is still exchangeable with its reference, with a false-alarm rate for the whole stream.

The null hypothesis is that the values of the reference and of the stream are exchangeable. Each new value gets a
conformal p-value, its rank among all values before it with ties broken at random. Under the null these are independent
and uniform on (0, 1] (Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, theorem 8.2). A capital that
starts at 1 is bet on them, each bet f with ∫ f = 1, so the capital is a non-negative martingale, and by Ville's
inequality it ever reaches c with probability at most 1 / c, however long the stream is.
"""

from __future__ import annotations

import math
import random
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence

TAILS = (0.03, 0.1, 0.25, 0.5)
"""Each bet is on p-values below one of these. After a change to larger values the k-th p-value is uniform on
(0, k / (n + k)), n being the size of the reference, so first the smallest and then the others win."""
KEPT = 0.05
"""The part of the capital that each bet keeps if it loses."""
LOST = math.log(KEPT)
PATIENCE = 20.0
"""After three times as many batches, half of the capital has been bet."""
SIDES = ("above", "both")


class Martingale:
    """A capital that grows when values stop being exchangeable with those before them.

    The change may begin at any batch. So the capital is a mixture over when to begin betting: after t batches the part
    (1 + t / 50)^(−1/2) still waits, and the rest is bet. The weights fall slowly, so that a late change is found
    almost as soon as an early one.

    Args:
        reference: values to compare with; nothing is bet on them.
        side: ``"above"`` bets that values become larger, ``"both"`` that they become larger or smaller.
        seed: of the choice between tied values.
        time: of the end of the reference.

    >>> martingale = Martingale(range(50), side="above")
    >>> for _ in range(8):
    ...     _ = martingale.update(100.0)
    >>> martingale.capital > 1000
    True
    """

    def __init__(self, reference: Iterable[float] = (), *, side: str = "both", seed: int = 0, time: int = 0) -> None:
        if side not in SIDES:
            raise ValueError(f"side is 'above' or 'both', got {side!r}.")
        self.values = array("d", sorted(v for v in reference if math.isfinite(v)))
        self.random = random.Random(seed)
        self.bets = 0
        """How many values were bet on."""
        self._time = time
        mirrors = (False,) if side == "above" else (False, True)
        self._bets = [(tail, mirrored, math.log((1.0 - KEPT) / tail + KEPT)) for tail in TAILS for mirrored in mirrors]
        """Each bet's tail, whether it is on small values, and the logarithm of the factor if it wins."""
        self._log_capital: float | None = None
        self._logs = [-math.inf] * len(self._bets)
        """The logarithm of the capital that each bet has."""
        self._gains = [0.0] * len(self._bets)
        """The logarithm of the product of each bet's last factors, from where that has not been below 1 since."""
        self._quiet = [time] * len(self._bets)
        """When each of these products began."""

    def observe(self, value: float, time: int | None = None) -> None:
        """Add a value to those that later ones are compared with, without betting."""
        self._time = self._time + 1 if time is None else time
        self._quiet = [self._time] * len(self._bets)
        if math.isfinite(value):
            insort(self.values, value)

    def update(self, value: float, time: int | None = None) -> float | None:
        """Bet on a value and return its p-value, which is small for a large value; None if it is not finite.

        Args:
            value: the value.
            time: when it was observed; by default one later than the last value.
        """
        self._time = self._time + 1 if time is None else time
        if not math.isfinite(value):
            return None
        low, high = bisect_left(self.values, value), bisect_right(self.values, value)
        count = len(self.values)
        p = ((count - high) + (1.0 - self.random.random()) * (high - low + 1)) / (count + 1)
        self.values.insert(low, value)
        self._bet(p)
        return p

    def _bet(self, p: float) -> None:
        begins = math.log((_waiting(self.bets) - _waiting(self.bets + 1)) / len(self._bets))
        for i, (tail, mirrored, won) in enumerate(self._bets):
            gain = won if (1.0 - p if mirrored else p) <= tail else LOST
            more, less = self._logs[i], begins
            if more < less:
                more, less = less, more
            self._logs[i] = more + math.log1p(math.exp(less - more)) + gain
            gained = self._gains[i] + gain
            if gained <= 0.0:
                gained, self._quiet[i] = 0.0, self._time
            self._gains[i] = gained
        self._log_capital = None
        self.bets += 1

    @property
    def quiet_until(self) -> int:
        """The time until which the bet that has most of the capital had won nothing: a change began later."""
        return self._quiet[max(range(len(self._logs)), key=self._logs.__getitem__)]

    @property
    def log_capital(self) -> float:
        """The natural logarithm of the capital."""
        if self._log_capital is None:
            self._log_capital = _log_sum((math.log(_waiting(self.bets)), *self._logs))
        return self._log_capital

    @property
    def capital(self) -> float:
        """The capital, which began at 1; infinite where a float cannot hold it."""
        return math.exp(self.log_capital) if self.log_capital < 700 else math.inf


def _waiting(batches: int) -> float:
    """Return the part of the initial capital that has not been bet after so many batches."""
    return 1.0 / math.sqrt(1.0 + batches / PATIENCE)


def _log_sum(logs: Sequence[float]) -> float:
    most = max(logs)
    return most if most == -math.inf else most + math.log(sum(math.exp(one - most) for one in logs))
