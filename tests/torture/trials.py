"""What all kinds of trials share: a table of kinds, a loop that counts outcomes, and checks of refusals."""

from __future__ import annotations

import gc
import random
import resource
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MEGABYTES = 768
"""How much a single trial may raise the peak of the process's memory."""


class BrokenPromiseError(AssertionError):
    """A trial after which a promise does not hold."""


Trial = Callable[[random.Random, Path], "str | Counter[str]"]
"""Runs one trial in an empty folder; returns its outcome, or several with counts."""


@dataclass(frozen=True)
class Kind:
    """A kind of trial: how many are run by default, and the promise, in one sentence."""

    name: str
    trials: int
    run: Trial
    promise: str


KINDS: dict[str, Kind] = {}


def kind(name: str, trials: int) -> Callable[[Trial], Trial]:
    """Register a kind of trial; the first line of the function's docstring is the promise."""

    def register(run: Trial) -> Trial:
        KINDS[name] = Kind(name, trials, run, (run.__doc__ or "").strip().splitlines()[0])
        return run

    return register


@dataclass
class Report:
    """The outcomes of the trials of one kind, and what broke."""

    kind: str
    trials: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)


def run_kind(name: str, trials: int, seed: int, first: int = 0, *, verbose: bool = False) -> Report:
    """Run trials of one kind; every trial has a random generator of its own, so that it can be repeated alone."""
    report = Report(name)
    for number in range(first, first + trials):
        rng = random.Random(f"{seed} {name} {number}")
        before = peak_memory()
        try:
            with tempfile.TemporaryDirectory(prefix="medbn-torture-") as folder, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                outcome = KINDS[name].run(rng, Path(folder))
            grown = (peak_memory() - before) >> 20
            if grown > MEGABYTES:
                raise BrokenPromiseError(f"{outcome}, with {grown} MB of memory")
        except Exception as error:
            if verbose:
                traceback.print_exc()
            report.broken.append(f"{name} {number}: {type(error).__name__}: {str(error)[:300]}")
            outcome = "BROKEN"
        report.trials += 1
        report.outcomes.update(outcome if isinstance(outcome, Counter) else [outcome])
        gc.collect(0)
    return report


def peak_memory() -> int:
    """Return the peak of this process's memory so far, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def require(holds: bool, otherwise: str) -> None:
    """Raise if a promise does not hold."""
    if not holds:
        raise BrokenPromiseError(otherwise)


def attempt(action: Callable[[], Any], *refusals: type[Exception], one_line: bool = True) -> tuple[bool, Any]:
    """Return (True, result), or (False, error) if the action is refused with an error that a user can read.

    Any other exception is a broken promise, and leaves this function.
    """
    try:
        return True, action()
    except refusals as error:
        text = str(error)
        require(bool(text.strip()), f"a {type(error).__name__} without a message")
        require(not one_line or "\n" not in text.strip(), f"a message of several lines: {text[:200]!r}")
        return False, error
