"""How far a training run is: counted in steps, or fitted to a number of minutes."""

from __future__ import annotations

import time
from typing import Any

MARGIN = 0.98
"""The share of the minutes that is planned for."""


class Pace:
    """The progress of a run, from 0 to 1, of a number of epochs or of as many as fit in some minutes.

    With minutes, the number of epochs is estimated again after every epoch, and the progress of those that are left is
    spread over what is left to 1: the learning rate reaches its end on slow and fast machines alike.

    Args:
        epochs: of the run; with minutes, what is assumed until the first one has been timed.
        steps: of an epoch.
        minutes: how long the run may take; None for the given number of epochs.
    """

    def __init__(self, epochs: int, steps: int, minutes: float | None = None) -> None:
        self.epochs = epochs
        self.steps = steps
        self.minutes = minutes
        self._began = time.monotonic()
        self._from = (0, 0.0)
        """The step at which the number of epochs was estimated last, and the progress there."""

    def progress(self, done: int) -> float:
        """Return the progress after some steps of the run."""
        first, before = self._from
        left = self.epochs * self.steps - first
        return before + (1 - before) * (done - first) / left if left > 0 else 1.0

    def fit(self, number: int, seconds: float, other: float = 0.0) -> None:
        """Estimate the number of epochs; without minutes, nothing changes.

        Args:
            number: of epochs that are done.
            seconds: that an epoch takes.
            other: that are needed apart from epochs, such as for the last validation.
        """
        if self.minutes is None:
            return
        left = MARGIN * 60 * self.minutes - (time.monotonic() - self._began) - other
        done = number * self.steps
        self._from = (done, self.progress(done))
        self.epochs = number + max(0, int(left / seconds))

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs to continue."""
        return {"epochs": self.epochs, "seconds": time.monotonic() - self._began, "from": list(self._from)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what ``state_dict`` returned."""
        self.epochs = int(state["epochs"])
        self._began = time.monotonic() - float(state["seconds"])
        first, before = state["from"]
        self._from = (int(first), float(before))
