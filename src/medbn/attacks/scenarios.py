"""When an attacker strikes: sections 4 and 7.1 of the MedBN paper, said exactly.

``instant``: batch t is attacked after t − 1 benign batches. Every batch of the stream is attacked, each from the state
that the *un-poisoned* batches before it have left; the poisoned batch is predicted, the state put back, and then the
clean batch is predicted and adapted on. So every batch gives one sample of the metric, no batch has seen another's
poison, and the state is that of a stream without attack throughout.

``cumulative``: every batch is attacked and the poison stays: parameters, statistics, moments, memory, all of the state.
The error without attack comes from a second line of states, of the same adapter on the clean stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..methods.base import Adapter
from ..methods.calls import logits_of
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


def instant(
    adapter: Adapter, stream: Iterable[tuple[Tensor, Tensor]], attack: Attack, malicious: Malicious
) -> Iterator[Outcome]:
    """Attack every batch of the stream, each from the state that the clean batches before it have left."""
    for images, labels in stream:
        poisoned = attack(adapter, images, labels, malicious)
        attacked = predicted(adapter, poisoned)
        clean = _serve(adapter, images)
        yield _outcome(attack, poisoned, attacked, clean, images, labels, malicious)


def cumulative(
    adapter: Adapter, stream: Iterable[tuple[Tensor, Tensor]], attack: Attack, malicious: Malicious
) -> Iterator[Outcome]:
    """Attack every batch of the stream, and let the poison stay."""
    untouched = adapter.snapshot()
    for images, labels in stream:
        poisoned = attack(adapter, images, labels, malicious)
        attacked = _serve(adapter, poisoned)
        poisoned_state = adapter.snapshot()
        try:
            adapter.restore(untouched)
            clean = _serve(adapter, images)
            untouched = adapter.snapshot()
        finally:
            adapter.restore(poisoned_state)
        yield _outcome(attack, poisoned, attacked, clean, images, labels, malicious)


SCENARIOS: dict[str, Callable[..., Iterator[Outcome]]] = {"instant": instant, "cumulative": cumulative}


def _serve(adapter: Adapter, images: Tensor) -> Tensor:
    with torch.no_grad():
        return logits_of(adapter(images), adapter.logits, len(images))


def _outcome(
    attack: Attack,
    poisoned: Tensor,
    attacked: Tensor,
    clean: Tensor,
    images: Tensor,
    labels: Tensor,
    malicious: Malicious,
) -> Outcome:
    images, labels, mine = check_batch(images, labels, malicious)
    return Outcome(attack.objective, poisoned, attacked, clean, labels, ~mine)
