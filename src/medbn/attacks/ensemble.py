"""Several attacks on the same batch, and the worst of them for the defender: no credit for hidden gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..methods._call import extract_logits
from ..methods.base import Adapter
from .dia import DIA, Malicious, check_batch
from .objectives import Objective, Targeted


@dataclass(frozen=True)
class Ensemble:
    """Runs every attack, tries each result on the real adapter, and returns the one that harms most.

    The judge is the adapter, which predicts and adapts on the poisoned batch and is then restored, as AutoAttack judges
    on the model itself and not on a surrogate's loss. Of equally harmful results, the higher objective wins.
    """

    attacks: Sequence[DIA]

    def __post_init__(self) -> None:
        object.__setattr__(self, "attacks", tuple(self.attacks))
        if not self.attacks:
            raise ValueError("an ensemble needs at least one attack.")
        if len({attack.objective for attack in self.attacks}) > 1:
            raise ValueError(
                "the attacks of an ensemble must have the same objective, or the worst of them means nothing."
            )

    @property
    def objective(self) -> Objective:
        """What all of them raise."""
        return self.attacks[0].objective

    def __call__(self, adapter: Adapter, images: Tensor, labels: Tensor, malicious: Malicious) -> Tensor:
        """The most harmful poisoned batch."""
        return self.craft(adapter, images, labels, malicious)[0]

    def craft(
        self, adapter: Adapter, images: Tensor, labels: Tensor, malicious: Malicious
    ) -> tuple[Tensor, list[tuple[float, float]]]:
        """The most harmful poisoned batch, and every attack's harm and objective on the real adapter, in order."""
        images, labels, mine = check_batch(images, labels, malicious)
        benign = ~mine
        results, judged = [], []
        for attack in self.attacks:
            poisoned = attack(adapter, images, labels, malicious)
            logits = predicted(adapter, poisoned)
            harm, value = (f(logits, labels, benign).item() for f in (self.objective.harm, self.objective.value))
            results.append(poisoned)
            judged.append((harm, value))
        return results[max(range(len(judged)), key=lambda i: judged[i])], judged


def worst_case(objective: Objective | None = None, **options: Any) -> Ensemble:
    """The set to trust a defence after: exact, straight-through and smooth gradients, and restarts from anywhere.

    ``options`` are those of DIA and hold for all of them; which gradients are tried is not an option.
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


def predicted(adapter: Adapter, images: Tensor) -> Tensor:
    """The logits that the real adapter returns for a batch; its state is put back."""
    before = adapter.snapshot()
    try:
        with torch.no_grad():
            return extract_logits(adapter(images), adapter.logits, len(images))
    finally:
        adapter.restore(before)
