"""The progress of ``medbn run``: how much is done, and the numbers so far."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ._terminal import TextTable, show_progress

if TYPE_CHECKING:
    from ..bench import Event, Recipe, Shard

MAX_ROWS = 24
"""Rows of the table of numbers so far, which must fit on a terminal."""


class RunProgress:
    """How much of a run is done.

    Args:
        recipes: what is run.
        shard: the part of them that is run; None for all.
    """

    def __init__(self, recipes: Sequence[Recipe], shard: Shard | None = None) -> None:
        cells = [cell for recipe in recipes for cell in recipe.cells()]
        self.cells = len(shard.select(cells) if shard else {str(cell.to_dict()) for cell in cells})
        self.done: dict[str, float] = {}
        """The finished fraction of each stream, by the key of its cell."""
        self.busy: set[str] = set()
        """The streams that another process is running."""
        self.batches = 0

    def add(self, event: Event) -> None:
        """Count an event."""
        self.done[event.key] = event.batch / max(event.batches, 1)
        self.batches += event.kind == "batch"
        if event.kind == "busy":
            self.busy.add(event.key)

    @property
    def streams(self) -> str:
        """How many streams are done, in words."""
        return f"{sum(fraction >= 1 for fraction in self.done.values())} of {self.cells} streams"

    @property
    def summary(self) -> str:
        """What is done when the run stops now, in words."""
        return f"{self.streams} are done, {self.batches} batch{'' if self.batches == 1 else 'es'} in this run"


class NumbersSoFar:
    """Success rates or errors in per cent, by method and estimator, over the batches of this run."""

    def __init__(self) -> None:
        self.rates: dict[tuple[str, str], dict[str, list[float]]] = {}

    def add(self, event: Event) -> None:
        """Add the rates of a finished batch."""
        from ..bench import error_rate

        if event.kind != "batch":
            return
        row = self.rates.setdefault((event.cell.method, event.cell.estimator), {})
        metrics, attack = event.metrics, event.cell.attack
        if attack is None:
            row.setdefault("error", []).append(error_rate(metrics))
            return
        if "benign" not in metrics:
            return  # the attack begins at a later batch
        row.setdefault("error without", []).append(error_rate(metrics, "wrong_without"))
        rate = metrics["hit"] if "hit" in metrics else error_rate(metrics)
        row.setdefault(f"{attack.objective}, {attack.label}", []).append(rate)

    def table(self) -> TextTable:
        """Return the means as a table."""
        names = list(dict.fromkeys(name for row in self.rates.values() for name in row))
        rows = [
            [method, estimator, *(f"{100 * sum(row[n]) / len(row[n]):.1f}" if n in row else "" for n in names)]
            for (method, estimator), row in sorted(self.rates.items())
        ]
        return ["method", "estimator", *names], rows[:MAX_ROWS]


@contextmanager
def show_run(names: str, progress: RunProgress, quiet: bool) -> Iterator[Callable[[Event], None]]:
    """Yield a function that takes the events of a run, counts them in ``progress`` and shows them."""
    numbers = NumbersSoFar()
    with show_progress(names, quiet=quiet, table=numbers.table) as bar:

        def report(event: Event) -> None:
            numbers.add(event)
            progress.add(event)
            note = progress.streams
            if event.kind == "batch":
                note += f" · {event.cell.label}: {_describe_batch(event.metrics)}"
            bar.update(sum(progress.done.values()), progress.cells, note)

        yield report
    if progress.busy:
        print(f"another process is running {len(progress.busy)} of the streams.", file=sys.stderr)


def _describe_batch(metrics: dict[str, Any]) -> str:
    """Return what happened to a batch, in words."""
    from ..bench import error_rate

    if "hit" in metrics:
        return "hit" if metrics["hit"] else "missed"
    if "benign" in metrics:
        before, after = (100 * error_rate(metrics, name) for name in ("wrong_without", "wrong"))
        return f"error {before:.0f} → {after:.0f} %"
    return f"error {100 * error_rate(metrics, 'wrong' if 'wrong' in metrics else 'wrong_clean'):.0f} %"
