"""Measure what the defence costs on this machine, always beside BatchNorm: ``medbn speed`` on the command line.

Each part is a module with two functions: ``cases(settings)`` lists what it measures, such as shapes and layouts, and
``measure(settings, case)`` measures one case. docs/speed.md explains how to read the results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from . import attack, layer, memory, model, scaling, step
from .environment import describe_environment
from .measurement import Measurement
from .settings import DTYPES, LAYOUTS, Settings
from .tables import Table, build_tables

__all__ = [
    "DTYPES",
    "LAYOUTS",
    "PARTS",
    "Measurement",
    "Part",
    "Settings",
    "Table",
    "build_tables",
    "describe_environment",
]


class Part(NamedTuple):
    """One of the parts of ``medbn speed``."""

    cases: Callable[[Settings], list[dict[str, Any]]]
    """Return the cases to measure: combinations of shape, layout, method, ..."""
    measure: Callable[[Settings, dict[str, Any]], list[Measurement]]
    """Measure every candidate in one case."""


PARTS = {
    module.__name__.rpartition(".")[2]: Part(module.cases, module.measure)
    for module in (layer, step, attack, scaling, memory, model)
}
