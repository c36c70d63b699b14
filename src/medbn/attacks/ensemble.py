"""Several attacks on the same batch, of which the most harmful counts, so that hiding one gradient is no defence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..methods import Adapter, predict_logits
from ._batch import check_batch
from .base import Attack, Malicious
from .dia import DIA
from .objectives import Objective, Targeted


@dataclass(frozen=True)
class Ensemble:
    """Run every attack, try each result on the real adapter, and return the most harmful one.

    The adapter predicts and adapts on each poisoned batch and is then restored. Like AutoAttack, this measures harm on
    the model itself and not on a surrogate's loss. Of equally harmful results, the one with the higher objective wins.
    """

    attacks: Sequence[Attack]

    def __post_init__(self) -> None:
        object.__setattr__(self, "attacks", tuple(self.attacks))
        if not self.attacks:
            raise ValueError("an ensemble needs at least one attack.")
        if len({attack.objective for attack in self.attacks}) > 1:
            raise ValueError("the attacks of an ensemble must have the same objective, to be comparable.")

    @property
    def objective(self) -> Objective:
        """What all of them maximise."""
        return self.attacks[0].objective

    def __call__(self, adapter: Adapter, images: Tensor, labels: Tensor, malicious: Malicious) -> Tensor:
        """Return the most harmful poisoned batch."""
        return self.craft(adapter, images, labels, malicious)[0]

    def craft(
        self, adapter: Adapter, images: Tensor, labels: Tensor, malicious: Malicious
    ) -> tuple[Tensor, list[tuple[float, float]]]:
        """Return the most harmful poisoned batch, and the harm and objective of each attack on the real adapter."""
        images, labels, benign = check_batch(images, labels, malicious, own=self.objective.own)
        batches, scores = [], []
        for attack in self.attacks:
            poisoned = attack(adapter, images, labels, malicious)
            logits = predict_and_restore(adapter, poisoned)
            harm, value = (f(logits, labels, benign).item() for f in (self.objective.harm, self.objective.value))
            batches.append(poisoned)
            scores.append((harm if benign.any() else 0.0, value))  # with none to harm, only the objective counts
        return batches[max(range(len(scores)), key=lambda i: scores[i])], scores


def worst_case(objective: Objective | None = None, **options: Any) -> Ensemble:
    """Return the attack to judge a defence by: exact, straight-through and smooth gradients, and a restarted attack.

    Args:
        objective: what all of them maximise; None for ``Targeted()``.
        options: those of ``DIA``, for all of them, but for ``gradient``, which differs between them.
    """
    if "gradient" in options:
        raise ValueError("worst_case tries every gradient; use DIA(gradient=...) for one of them.")
    options["objective"] = Targeted() if objective is None else objective
    variants: list[dict[str, Any]] = [
        {"gradient": "exact"},
        {"gradient": "straight_through"},
        {"gradient": "smooth"},
        {"gradient": "straight_through", "start": "random", "restarts": max(2, options.get("restarts", 1))},
    ]
    return Ensemble([DIA(**{**options, **variant}) for variant in variants])


def predict_and_restore(adapter: Adapter, images: Tensor) -> Tensor:
    """Return the logits that the adapter gives for a batch, and restore its state."""
    before = adapter.snapshot()
    try:
        return predict_logits(adapter, images)
    finally:
        adapter.restore(before)
