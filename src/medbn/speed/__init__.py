"""What the defence costs on the device at hand, always beside BatchNorm; ``medbn speed`` on a terminal.

A part lists the situations that it measures, and measures one. docs/speed.md explains how to read what comes out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from . import attack, layer, memory, scaling, step
from .machine import describe
from .settings import DTYPES, LAYOUTS, Settings, shape
from .tables import Table, tables
from .timing import Row

__all__ = ["DTYPES", "LAYOUTS", "PARTS", "Part", "Row", "Settings", "Table", "describe", "shape", "tables"]


class Part(NamedTuple):
    """Something to measure."""

    situations: Callable[[Settings], list[dict[str, Any]]]
    """Where: shapes, layouts, methods, and what else there is."""
    measure: Callable[[Settings, dict[str, Any]], list[Row]]
    """Every candidate in one of them."""


PARTS = {
    module.__name__.rpartition(".")[2]: Part(module.situations, module.measure)
    for module in (layer, step, attack, scaling, memory)
}
