"""Reports: what a store holds as a page, or as text for other programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from . import page, texts
from .build import build, headline
from .document import Document

__all__ = ["FORMATS", "Document", "build", "headline"]

FORMATS: Mapping[str, Callable[[Document], str]] = {
    "html": page.html,
    "markdown": texts.markdown,
    "latex": texts.latex,
    "csv": texts.csv,
    "json": texts.json,
}
"""How a document can be shown, by name."""
