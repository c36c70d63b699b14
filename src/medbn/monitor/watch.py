"""One test per signal, with one false-alarm rate for all of them and for the whole stream."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from .._check_types import wrong_type
from .._errors import unknown_name
from . import signals
from .martingale import Martingale
from .record import Record


class Watch:
    """Tests whether the signals of a stream stay exchangeable with those of a reference.

    An alarm is raised where the capital of one of K signals reaches K / α. By Ville's inequality and the union bound a
    stream without a change raises any alarm, ever, with probability at most α.

    Args:
        alpha: α.
        reference: how many batches at the start are the reference, or records of a reference stream.
        patterns: shell patterns of the signals to test; None for those that are registered with a side.
        seed: of the choice between tied values.
        learns: whether the method learns, which moves some signals without any change of the images.
    """

    def __init__(
        self,
        alpha: float,
        reference: int | Sequence[Record],
        patterns: Iterable[str] | None = None,
        seed: int = 0,
        learns: bool = False,
    ) -> None:
        if wrong_type(alpha, "float") or not 0 < alpha < 1:
            raise ValueError(f"alpha is a probability between 0 and 1, got {alpha!r}.")
        self.alpha, self.seed, self.learns = alpha, seed, learns
        self.patterns = None if patterns is None else ([patterns] if isinstance(patterns, str) else list(patterns))
        for pattern in self.patterns or ():
            kind = pattern.partition("/")[0]
            if kind not in signals.available() and not any(character in kind for character in "*?["):
                raise unknown_name("signal", pattern, signals.available())
        self.sides: dict[str, str] = {}
        """The signals that are tested, each with the change that is looked for; known from the first batch on."""
        self.periods = 1
        """How many references there have been since ``restart``: a declared change begins another."""
        self.divides_alpha = False
        """Whether there may be any number of references, which then share α as α / (n · (n + 1))."""
        self._tests: dict[str, Martingale] = {}
        self._raised: set[str] = set()
        self._seeds = 0
        self._batch = 0
        self._values: list[Mapping[str, float]] = []
        self.restart(reference)

    def restart(self, reference: int | Sequence[Record]) -> None:
        """Test from now on against another reference, and raise alarms again."""
        if isinstance(reference, int):
            if isinstance(reference, bool) or reference < 2:
                raise ValueError(f"reference is a number of batches, at least 2, or their records; got {reference!r}.")
            self.length, values = reference, []
        else:
            if not isinstance(reference, Sequence) or not all(isinstance(record, Record) for record in reference):
                raise TypeError(f"reference is a number of batches or a list of their records; got {reference!r:.60}.")
            values = [record.signals for record in reference]
            self.length = len(values)
            if self.length < 2:
                raise ValueError(f"the reference has {self.length} records; at least 2 are needed, and 50 are good.")
            self.sides = self._choose(dict.fromkeys(name for one in values for name in one))
        self.periods = 1
        self._values = list(values)
        self.rearm()

    def begin_period(self) -> None:
        """Collect another reference from the stream, after a change that the method has declared."""
        self.periods += 1
        self._values = []
        self.rearm()

    def rearm(self) -> None:
        """Drop all evidence and begin again now, with the same reference."""
        self._raised = set()
        self._tests = {}
        for name, side in self.sides.items():
            self._seeds += 1
            reference = (values.get(name, math.nan) for values in self._values)
            seed = hash((self.seed, self._seeds))
            self._tests[name] = Martingale(reference, side=side, seed=seed, time=self._batch)

    @property
    def collecting(self) -> bool:
        """Whether the reference is not complete."""
        return len(self._values) < self.length

    @property
    def threshold(self) -> float:
        """The logarithm to base 10 of the capital that raises an alarm."""
        share = self.periods * (self.periods + 1) if self.divides_alpha else 1
        return math.log10(max(len(self.sides), 1) * share / self.alpha)

    def update(self, batch: int, values: Mapping[str, float]) -> list[str]:
        """Add the signals of a batch; return the names of those that now raise an alarm for the first time."""
        self._batch = batch
        if not self.sides:
            self.sides = self._choose(values)
            self.rearm()
        if self.collecting:
            self._values.append(dict(values))
            for name, test in self._tests.items():
                test.observe(values.get(name, math.nan), batch)
            return []
        raised, threshold = [], self.threshold
        for name, test in self._tests.items():
            test.update(values.get(name, math.nan), batch)
            if name not in self._raised and self._log10(test) >= threshold:
                self._raised.add(name)
                raised.append(name)
        return raised

    def evidence(self) -> dict[str, float]:
        """Return the logarithm to base 10 of the capital of each signal."""
        return {name: self._log10(test) for name, test in self._tests.items()}

    def quiet_until(self, name: str) -> int:
        """Return the last batch at which there was no evidence of a change of a signal."""
        return self._tests[name].quiet_until

    @staticmethod
    def _log10(test: Martingale) -> float:
        return test.log_capital / math.log(10)

    def _choose(self, names: Iterable[str]) -> dict[str, str]:
        """Return the signals to test among those of a batch, each with its side."""
        sides: dict[str, str] = {}
        names, kinds = list(names), set()
        for name in names:
            kind, _, layer = name.partition("/")
            signal = signals.get(kind) if kind in signals.available() else None
            side = None if signal is None else signal.side
            first = bool(layer) and kind not in kinds  # the first layer, which no learned parameter precedes
            kinds.add(kind)
            if self.patterns is None:
                follows = signal is not None and signal.follows_learning and self.learns
                if side is not None and (first or not follows):
                    sides[name] = side
            elif any(fnmatchcase(name, pattern) for pattern in self.patterns):
                sides[name] = side or "both"
        for pattern in self.patterns or ():
            if not any(fnmatchcase(name, pattern) for name in names):
                raise unknown_name("signal", pattern, sorted(names))
        return sides
