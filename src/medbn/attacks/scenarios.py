"""When an attacker strikes: sections 4 and 7.1 of the MedBN paper, said exactly.

``instant``: batch t is attacked after t − 1 benign batches. Every batch of the stream is attacked, each from the state
that the *un-poisoned* batches before it have left; the poisoned batch is predicted, the state put back, and then the
clean batch is predicted and adapted on. So every batch gives one sample of the metric, no batch has seen another's
poison, and the state is that of a stream without attack throughout.

``cumulative``: every batch is attacked and the poison stays: parameters, statistics, moments, memory, all of the state.
The error without attack comes from a second line of states, of the same adapter on the clean stream.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..methods._call import extract_logits
from ..methods.base import Adapter
from .dia import DIA, Malicious, check_batch
from .ensemble import Ensemble, predicted
from .objectives import Objective

Attack = DIA | Ensemble


@dataclass(frozen=True, eq=False)
class Outcome:
    """One attacked batch: predictions with and without the attack."""

    objective: Objective
    poisoned: Tensor
    attacked: Tensor
    """The adapter's logits for the poisoned batch."""
    clean: Tensor
    """The adapter's logits for the batch without poison."""
    labels: Tensor
    benign: Tensor

    def harm(self) -> float:
        """What the attack did: 1 for a target that was hit, else the share of wrong predictions."""
        return self.objective.harm(self.attacked, self.labels, self.benign).item()

    def harm_without(self) -> float:
        """The same without the attack: 1 for a target whose clean prediction already is the target class."""
        return self.objective.harm(self.clean, self.labels, self.benign).item()


class Scenario(ABC):
    """An attacked stream, one ``step`` per batch; ``state`` and ``load`` carry it over a break."""

    def __init__(self, adapter: Adapter, attack: Attack, malicious: Malicious) -> None:
        self.adapter, self.attack, self.malicious = adapter, attack, malicious

    @abstractmethod
    def step(self, images: Tensor, labels: Tensor) -> Outcome:
        """Attack the next batch of the stream."""

    def serve(self, images: Tensor) -> Tensor:
        """The next batch of the stream without attack: its logits."""
        return _serve(self.adapter, images)

    def state(self) -> dict[str, Any]:
        """Everything that the next step depends on, small; loads with ``weights_only=True``."""
        return {"adapter": self.adapter.snapshot()}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from what ``state`` gave, with an adapter made like that one."""
        self.adapter.restore(state["adapter"])

    def outcome(self, poisoned: Tensor, attacked: Tensor, clean: Tensor, images: Tensor, labels: Tensor) -> Outcome:
        """One step's result."""
        images, labels, mine = check_batch(images, labels, self.malicious)
        return Outcome(self.attack.objective, poisoned, attacked, clean, labels, ~mine)


class Instant(Scenario):
    """Attack every batch, each from the state that the clean batches before it have left."""

    def step(self, images: Tensor, labels: Tensor) -> Outcome:
        """Attack, predict, put the state back; then the clean batch."""
        poisoned = self.attack(self.adapter, images, labels, self.malicious)
        attacked = predicted(self.adapter, poisoned)
        clean = _serve(self.adapter, images)
        return self.outcome(poisoned, attacked, clean, images, labels)


class Cumulative(Scenario):
    """Attack every batch, and let the poison stay; a second line of states has seen none of it."""

    def __init__(self, adapter: Adapter, attack: Attack, malicious: Malicious) -> None:
        super().__init__(adapter, attack, malicious)
        self.untouched = adapter.snapshot()

    def step(self, images: Tensor, labels: Tensor) -> Outcome:
        """Attack and predict; then the clean batch on the line without attack."""
        poisoned = self.attack(self.adapter, images, labels, self.malicious)
        attacked = _serve(self.adapter, poisoned)
        return self.outcome(poisoned, attacked, self._serve_untouched(images), images, labels)

    def serve(self, images: Tensor) -> Tensor:
        """The next batch without attack on both lines; gives the logits of the attacked one."""
        served = super().serve(images)
        self._serve_untouched(images)
        return served

    def _serve_untouched(self, images: Tensor) -> Tensor:
        """The clean batch on the line that has seen no poison."""
        poisoned_state = self.adapter.snapshot()
        try:
            self.adapter.restore(self.untouched)
            clean = _serve(self.adapter, images)
            self.untouched = self.adapter.snapshot()
        finally:
            self.adapter.restore(poisoned_state)
        return clean

    def state(self) -> dict[str, Any]:
        """Both lines of states."""
        return {**super().state(), "untouched": self.untouched}

    def load(self, state: dict[str, Any]) -> None:
        """Continue both lines."""
        self.adapter.restore(state["untouched"])  # once through the adapter, which brings it to its device
        self.untouched = self.adapter.snapshot()
        super().load(state)


SCENARIOS: dict[str, type[Scenario]] = {"instant": Instant, "cumulative": Cumulative}


def instant(
    adapter: Adapter, stream: Iterable[tuple[Tensor, Tensor]], attack: Attack, malicious: Malicious
) -> Iterator[Outcome]:
    """Attack every batch of the stream, each from the state that the clean batches before it have left."""
    scenario = Instant(adapter, attack, malicious)
    return (scenario.step(images, labels) for images, labels in stream)


def cumulative(
    adapter: Adapter, stream: Iterable[tuple[Tensor, Tensor]], attack: Attack, malicious: Malicious
) -> Iterator[Outcome]:
    """Attack every batch of the stream, and let the poison stay."""
    scenario = Cumulative(adapter, attack, malicious)
    return (scenario.step(images, labels) for images, labels in stream)


def _serve(adapter: Adapter, images: Tensor) -> Tensor:
    with torch.no_grad():
        return extract_logits(adapter(images), adapter.logits, len(images))
