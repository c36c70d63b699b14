"""Attacks that poison a batch which is about to be adapted on.

The loop (``DIA``), what it wants (objectives), what it may do (projections), what it differentiates (the adapter's
surrogate) and when it strikes (scenarios) are separate parts that combine. docs/threat-model.md says what each assumes.
"""

from __future__ import annotations

from typing import Any

from .._errors import unknown_name
from .dia import DIA, Crafted
from .ensemble import Ensemble, worst_case
from .objectives import Indiscriminate, IndiscriminateSegmentation, Objective, Targeted, TargetedPixel
from .scenarios import SCENARIOS, Cumulative, Instant, Outcome, Scenario, cumulative, instant
from .summary import Summary, mean_iou

__all__ = [
    "DIA",
    "SCENARIOS",
    "Crafted",
    "Cumulative",
    "Ensemble",
    "Indiscriminate",
    "IndiscriminateSegmentation",
    "Instant",
    "Objective",
    "Outcome",
    "Scenario",
    "Summary",
    "Targeted",
    "TargetedPixel",
    "available",
    "cumulative",
    "get",
    "instant",
    "mean_iou",
    "worst_case",
]

_named: dict[str, dict[str, Any]] = {
    "dia": {},
    "straight_through": {"gradient": "straight_through"},
    "smooth": {"gradient": "smooth"},
    "semi_white_box": {"knowledge": "semi"},
    "adaptive": {"alignment": 1.0},
    "unrolled": {"unroll": 1},
}


def available() -> list[str]:
    """The names of ready-made attacks.

    >>> available()
    ['adaptive', 'dia', 'semi_white_box', 'smooth', 'straight_through', 'unrolled', 'worst_case']
    """
    return sorted([*_named, "worst_case"])


def get(name: str, objective: Objective | None = None, **options: Any) -> DIA | Ensemble:
    """A ready-made attack; ``options`` are those of DIA, and go before the name's own.

    >>> get("straight_through", Indiscriminate(), steps=20).gradient
    'straight_through'
    """
    if name == "worst_case":
        return worst_case(objective, **options)
    if name not in _named:
        raise unknown_name("attack", name, available())
    return DIA(**{"objective": Targeted() if objective is None else objective, **_named[name], **options})
