"""What every part of a page needs to know of the whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .cells import CellIndex
from .palette import Palette


@dataclass(frozen=True)
class Context:
    """The colours of the page, the cells behind its numbers, and where its groups of sections begin."""

    palette: Palette
    cells: CellIndex = field(default_factory=lambda: CellIndex({}))
    groups: Mapping[str, str] = field(default_factory=dict)
