"""Attacks on a batch that a model is about to adapt on.

Independent parts that combine: the loop (``DIA``), what it maximises (``objectives``), where images may go
(``projections``), what it differentiates (the adapter's surrogate) and when it strikes (``scenarios``).
docs/threat-model.md says what each assumes.
"""

from . import objectives, scenarios
from .base import Attack, Malicious
from .dia import DIA, PoisonedBatch
from .ensemble import Ensemble, worst_case
from .interleaved import Interleaved, owned_before
from .objectives import Indiscriminate, IndiscriminateSegmentation, Objective, Targeted, TargetedPixel
from .projections import project
from .registry import available, get, register, unregister
from .replay import Replay
from .scenarios import Cumulative, Instant, Outcome, Scenario, cumulative, instant
from .statistics_bound import StatisticsBound
from .summary import Summary, mean_iou
from .unnoticed import Unnoticed

__all__ = [
    "DIA",
    "Attack",
    "Cumulative",
    "Ensemble",
    "Indiscriminate",
    "IndiscriminateSegmentation",
    "Instant",
    "Interleaved",
    "Malicious",
    "Objective",
    "Outcome",
    "PoisonedBatch",
    "Replay",
    "Scenario",
    "StatisticsBound",
    "Summary",
    "Targeted",
    "TargetedPixel",
    "Unnoticed",
    "available",
    "cumulative",
    "get",
    "instant",
    "mean_iou",
    "objectives",
    "owned_before",
    "project",
    "register",
    "scenarios",
    "unregister",
    "worst_case",
]
