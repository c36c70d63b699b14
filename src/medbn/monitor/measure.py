"""Compute the signals of a batch without waiting for a GPU: as many as can be before the adapter waits for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from .batch import Batch
from .served import Numbers, Reading
from .signals import Signal


class Early(NamedTuple):
    """What was computed of a batch as soon as it was predicted."""

    batch: Batch
    names: dict[str, list[str]]
    """The names of the numbers that each signal has returned, by the name of the signal."""
    reading: Reading

    def holds(self, signal: Signal, batch: Batch) -> bool:
        """Return whether a signal of the batch as it is now was computed."""
        if signal.name not in self.names:
            return False
        return batch is self.batch if signal.reads == "predictions" else batch.images is self.batch.images


def measure_early(signals: Sequence[Signal], batch: Batch) -> Early:
    """Compute those signals that read nothing but what is known as soon as a batch is predicted.

    One that fails is left to ``measure``, which warns: the call may still raise an error of its own.
    """
    known = ("images",) if batch.logits is None else ("images", "predictions")
    numbers: Numbers = {}
    names: dict[str, list[str]] = {}
    for signal in signals:
        if signal.reads in known:
            try:
                found = _compute(signal, batch)
            except Exception:
                continue
            names[signal.name] = list(found)
            numbers |= found
    return Early(batch, names, Reading(numbers))


def measure(
    signals: Sequence[Signal], batch: Batch, early: Early | None, warn: Callable[[object, str], None]
) -> Reading:
    """Return the numbers of all signals of a batch, of which some may have been computed early."""
    names: list[str] = []
    late: Numbers = {}
    for signal in signals:
        if early is not None and early.holds(signal, batch):
            names += early.names[signal.name]
            continue
        try:
            found = _compute(signal, batch)
        except Exception as error:
            warn(signal.name, f"the signal {signal.name!r} failed: {type(error).__name__}: {error}")
            continue
        names += found
        late |= found
    return Reading(late, None if early is None else early.reading, names)


def _compute(signal: Signal, batch: Batch) -> Numbers:
    """Return the numbers of one signal: one of its name, one for each layer, or none."""
    value = signal.function(batch)
    if isinstance(value, dict):
        return {f"{signal.name}/{layer}": one for layer, one in value.items()}
    return {} if value is None else {signal.name: value}
