"""Several attacks on the same batch, of which the most harmful counts, so that hiding one gradient is no defence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor

from ..methods import Adapter, predict_logits
from ._batch import check_batch
from .base import Attack, Malicious, advance, learn_from, load_state, state_of
from .dia import DIA
from .objectives import Objective, Targeted


@dataclass(frozen=True)
class Ensemble:
    """Run every attack, try each result on the real adapter, and return the most harmful one.

    The adapter predicts and adapts on each poisoned batch and is then restored. Like AutoAttack, this measures harm on
    the model itself and not on a surrogate's loss. Where the whole batch is the attacker's, harm is what comes after:
    the error on her images as they were, predicted once the adapter has adapted to the poisoned ones. Of equally
    harmful results, the one with the higher value of the first attack's objective wins.

    Attacks have the same objective, or objectives on the attacker's own images, which all have the same harm.
    """

    attacks: Sequence[Attack]

    def __post_init__(self) -> None:
        object.__setattr__(self, "attacks", tuple(self.attacks))
        if not self.attacks:
            raise ValueError("an ensemble needs at least one attack.")
        objectives = [attack.objective for attack in self.attacks]
        if any(each != objectives[0] for each in objectives) and not all(each.own for each in objectives):
            raise ValueError(
                "the attacks of an ensemble must have the same objective to be comparable, or objectives on the"
                " attacker's own images."
            )

    @property
    def objective(self) -> Objective:
        """What all of them maximise; the first one's, if these are several."""
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
            if benign.any():
                logits = predict_and_restore(adapter, poisoned)
                harm = self.objective.harm(logits, labels, benign)
            else:
                logits, later = predict_and_restore(adapter, poisoned, images)
                harm = self.objective.harm(later, labels, ~benign)
            batches.append(poisoned)
            scores.append((harm.item(), self.objective.value(logits, labels, benign).item()))
        return batches[max(range(len(scores)), key=lambda i: scores[i])], scores

    def learn_from(self, adapter: Adapter, images: Tensor, answers: Tensor) -> None:
        """Let every attack take note of the logits that were returned for the attacker's images."""
        for attack in self.attacks:
            learn_from(attack, adapter, images, answers)

    def advance(self) -> None:
        """Let every attack keep what later batches need of the one that was crafted."""
        for attack in self.attacks:
            advance(attack)

    def state(self) -> dict[str, Any]:
        """Return what the attacks keep between batches, by their number."""
        kept = {str(number): state_of(attack) for number, attack in enumerate(self.attacks)}
        return {"attacks": {number: state for number, state in kept.items() if state}}

    def load(self, state: dict[str, Any], device: torch.device) -> None:
        """Continue from what ``state`` returned."""
        for number, attack in enumerate(self.attacks):
            load_state(attack, state["attacks"].get(str(number), {}), device)


def worst_case(
    objective: Objective | Sequence[Objective] | None = None,
    *,
    knowledge: str | Sequence[str] = "white",
    **options: Any,
) -> Ensemble:
    """Return the attack to judge a defence by: exact, straight-through and smooth gradients, and a restarted attack.

    Args:
        objective: what all of them maximise; None for ``Targeted()``. Several, on the attacker's own images, are tried
            each.
        knowledge: what the attacker knows, as for ``DIA``; several are tried each.
        options: those of ``DIA``, for all of them, but for ``gradient``, which differs between them. ``model`` goes to
            those who have no other.
    """
    if "gradient" in options:
        raise ValueError("worst_case tries every gradient; use DIA(gradient=...) for one of them.")
    several = objective if isinstance(objective, Sequence) else (objective or Targeted(),)
    model = options.pop("model", None)
    variants: list[dict[str, Any]] = [
        {"gradient": "exact"},
        {"gradient": "straight_through"},
        {"gradient": "smooth"},
        {"gradient": "straight_through", "start": "random", "restarts": max(2, options.get("restarts", 1))},
    ]
    attacks = []
    for known in (knowledge,) if isinstance(knowledge, str) else knowledge:
        own = {"knowledge": known, **({"model": model} if known == "transfer" else {})}
        attacks += [DIA(**{**options, **own, "objective": each, **v}) for each in several for v in variants]
    return Ensemble(attacks)


@overload
def predict_and_restore(adapter: Adapter, images: Tensor) -> Tensor: ...
@overload
def predict_and_restore(adapter: Adapter, images: Tensor, later: Tensor) -> tuple[Tensor, Tensor]: ...


def predict_and_restore(
    adapter: Adapter, images: Tensor, later: Tensor | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """Return the logits that the adapter gives for a batch, and for a later one if given, and restore its state."""
    before = adapter.snapshot()
    try:
        logits = predict_logits(adapter, images)
        return logits if later is None else (logits, predict_logits(adapter, later))
    finally:
        adapter.restore(before)
