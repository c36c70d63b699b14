"""How a wrong name is answered, everywhere."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def unknown(kind: str, given: object, known: Iterable[str]) -> ValueError:
    """The error for a name nobody knows: what was given, what is meant perhaps, what there is."""
    names = sorted(known)
    close = get_close_matches(str(given), names, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return ValueError(f"unknown {kind} {given!r}.{hint} Available: {', '.join(names)}.")
