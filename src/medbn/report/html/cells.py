"""The stored cells behind the numbers of a page: listed once, and named by each number that is made from them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise

from markupsafe import Markup

from ..document import CELL_COLUMNS

KEY = 12
"""So many characters of a cell's key are shown."""


class CellIndex:
    """The place of each cell in a list that the page has once.

    Args:
        cells: what each cell is, by its key.
    """

    def __init__(self, cells: Mapping[str, Sequence[str]]) -> None:
        self._cells = cells
        self._places = {key: place for place, key in enumerate(cells)}

    def spans(self, keys: Sequence[str]) -> str:
        """Return the places of some cells, as ``"0-14 20"``; "" without any that are known."""
        places = sorted({self._places[key] for key in keys if key in self._places})
        if not places:
            return ""
        starts = [places[0], *(after for before, after in pairwise(places) if after > before + 1)]
        ends = [*(before for before, after in pairwise(places) if after > before + 1), places[-1]]
        return " ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))

    def as_json(self) -> Markup:
        """Return the list as JSON that ends no script, each text once; "" without cells."""
        if not self._cells:
            return Markup("")
        texts: dict[str, int] = {}
        rows = [
            [key[:KEY], *(texts.setdefault(text, len(texts)) for text in about)] for key, about in self._cells.items()
        ]
        content = {"columns": ["cell", *CELL_COLUMNS], "texts": list(texts), "rows": rows}
        text = json.dumps(content, ensure_ascii=True, separators=(",", ":"))
        return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))
