"""When an attacker strikes: sections 4 and 7.1 of the MedBN paper, stated exactly.

``instant``: batch t is attacked after t − 1 benign batches. Every batch of the stream is attacked, each from the state
that the *clean* batches before it have left: the poisoned batch is predicted, the state is restored, and then the clean
batch is predicted and adapted on. So every batch gives one sample of the metric, no batch is affected by another's
poison, and the state is that of a stream without attack throughout.

``cumulative``: every batch is attacked and the poison stays in all of the state: parameters, statistics, moments,
memory. The error without attack comes from a second state of the same adapter, which follows the clean stream.

``interleaved`` (``interleaved.py``, ours): the attacker owns whole batches of the stream.

``replay`` (``replay.py``): the same without gradients; she sends again those of her images that were misread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from .._registry import Registry
from ..confusion import confusion_matrix
from ..methods import Adapter, predict_logits
from ._batch import check_batch
from .base import Attack, Malicious, advance, learn_from, load_state, state_of
from .ensemble import predict_and_restore
from .objectives import Objective

Class = TypeVar("Class", bound="type[Scenario]")


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
        """Return the damage done: 1 for a target that was hit, otherwise the share of wrong predictions."""
        return self.objective.harm(self.attacked, self.labels, self.benign).item()

    def harm_without(self) -> float:
        """Return the same without the attack: 1 for a target whose clean prediction already is the target class."""
        return self.objective.harm(self.clean, self.labels, self.benign).item()

    def confusion(self, logits: Tensor) -> Tensor:
        """Return the confusion matrix of the benign images for dense logits, ``attacked`` or ``clean``."""
        predicted, labels = (tensor[self.benign] for tensor in (logits.argmax(dim=1), self.labels))
        return confusion_matrix(predicted, labels, logits.shape[1], self.objective.ignore)


class Scenario(ABC):
    """An attacked stream. A subclass defines ``step`` and, if it keeps state of its own, ``state`` and ``load``.

    Args:
        adapter: the victim.
        attack: what crafts the malicious images.
        malicious: which images of every batch are malicious.
    """

    name: ClassVar[str] = ""
    """The name that it is registered under."""
    label: ClassVar[str] = ""
    """What a report calls it; the name if a subclass does not set one."""

    def __init__(self, adapter: Adapter, attack: Attack, malicious: Malicious) -> None:
        self.adapter, self.attack, self.malicious = adapter, attack, malicious

    @abstractmethod
    def step(self, images: Tensor, labels: Tensor) -> Outcome:
        """Attack the next batch of the stream."""

    def serve(self, images: Tensor) -> Tensor:
        """Predict and adapt on the next batch without attack, and return its logits."""
        return predict_logits(self.adapter, images)

    def run(self, stream: Iterable[tuple[Tensor, Tensor]]) -> Iterator[Outcome]:
        """Attack every batch of a stream of images and labels."""
        return (self.step(images, labels) for images, labels in stream)

    def state(self) -> dict[str, Any]:
        """Return everything that the next step depends on; it loads with ``weights_only=True``."""
        return {"adapter": self.adapter.snapshot(), **state_of(self.attack)}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from what ``state`` returned, with an adapter made with the same options."""
        self.adapter.restore(state["adapter"])
        tensor = next(iter((*self.adapter.model.parameters(), *self.adapter.model.buffers())), None)
        load_state(self.attack, state, torch.device("cpu") if tensor is None else tensor.device)

    def outcome(self, poisoned: Tensor, attacked: Tensor, clean: Tensor, images: Tensor, labels: Tensor) -> Outcome:
        """Return the result of one step, given the logits with and without attack and the clean batch."""
        _, labels, benign = check_batch(images, labels, self.malicious)
        learn_from(self.attack, self.adapter, poisoned[~benign], attacked[~benign])
        advance(self.attack)
        return Outcome(self.attack.objective, poisoned, attacked, clean, labels, benign)


_registry: Registry[type[Scenario]] = Registry("scenario")


def available() -> list[str]:
    """Return the names of all scenarios.

    >>> available()
    ['cumulative', 'instant', 'interleaved', 'replay']
    """
    return sorted(_registry.available())


def get(name: str) -> type[Scenario]:
    """Return the class of that name."""
    return _registry.get(name)


def register(name: str, *, replace: bool = False) -> Callable[[Class], Class]:
    """Return a decorator that registers a scenario's class under a name, for recipes of the bench."""
    return _registry.register_class(name, replace=replace)


def unregister(name: str) -> None:
    """Remove a name."""
    _registry.unregister(name)


@register("instant")
class Instant(Scenario):
    """Attack every batch, each from the state that the clean batches before it have left."""

    def step(self, images: Tensor, labels: Tensor) -> Outcome:
        """Attack, predict and restore the state; then predict and adapt on the clean batch."""
        poisoned = self.attack(self.adapter, images, labels, self.malicious)
        attacked = predict_and_restore(self.adapter, poisoned)
        clean = self.serve(images)
        return self.outcome(poisoned, attacked, clean, images, labels)


@register("cumulative")
class Cumulative(Scenario):
    """Attack every batch and let the poison stay, beside a second state that follows the clean stream."""

    def __init__(self, adapter: Adapter, attack: Attack, malicious: Malicious) -> None:
        super().__init__(adapter, attack, malicious)
        self.clean_state = adapter.snapshot()

    def step(self, images: Tensor, labels: Tensor) -> Outcome:
        """Attack, predict and adapt; then predict the clean batch with the clean state."""
        poisoned = self.attack(self.adapter, images, labels, self.malicious)
        attacked = predict_logits(self.adapter, poisoned)
        return self.outcome(poisoned, attacked, self._serve_clean(images), images, labels)

    def serve(self, images: Tensor) -> Tensor:
        """Predict and adapt on the next batch without attack in both states; return the attacked one's logits."""
        logits = super().serve(images)
        self._serve_clean(images)
        return logits

    def _serve_clean(self, images: Tensor) -> Tensor:
        poisoned_state = self.adapter.snapshot()
        try:
            self.adapter.restore(self.clean_state)
            logits = predict_logits(self.adapter, images)
            self.clean_state = self.adapter.snapshot()
        finally:
            self.adapter.restore(poisoned_state)
        return logits

    def state(self) -> dict[str, Any]:
        """Return both states."""
        return {**super().state(), "untouched": self.clean_state}  # "untouched": as in stores so far

    def load(self, state: dict[str, Any]) -> None:
        """Continue from both states."""
        self.adapter.restore(state["untouched"])  # through the adapter, which moves the tensors to its device
        self.clean_state = self.adapter.snapshot()
        super().load(state)


def instant(
    adapter: Adapter, stream: Iterable[tuple[Tensor, Tensor]], attack: Attack, malicious: Malicious
) -> Iterator[Outcome]:
    """Attack every batch of the stream, each from the state that the clean batches before it have left."""
    return Instant(adapter, attack, malicious).run(stream)


def cumulative(
    adapter: Adapter, stream: Iterable[tuple[Tensor, Tensor]], attack: Attack, malicious: Malicious
) -> Iterator[Outcome]:
    """Attack every batch of the stream and let the poison stay."""
    return Cumulative(adapter, attack, malicious).run(stream)
