"""The error for a name that does not exist, lists of names in errors, and errors of others in one line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


def unknown_name(kind: str, given: object, known: Iterable[str]) -> ValueError:
    """Return the error for an unknown name: what was given, the closest name, and all names that exist."""
    names = sorted(known)
    close = get_close_matches(str(given), names, n=1)
    initials = "".join(word[:1] for word in str(given).split("_"))
    if not close and "_" in str(given) and initials in names:
        close = [initials]  # learning_rate: lr
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return ValueError(f"unknown {kind} {given!r}.{hint} Available: {', '.join(names)}.")


def abbreviate(names: Sequence[str], most: int = 4) -> str:
    """Return the first names, and how many more there are.

    >>> abbreviate(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def one_line(error: BaseException, most: int | None = None) -> str:
    r"""Return an error's message in one line of printable characters; the name of its type if it has none.

    Messages of libraries may have several lines, and may quote a file that somebody else wrote.

    Args:
        error: the error.
        most: cut the message after this many characters.

    >>> one_line(ValueError("no such\n  file"))
    'no such file'
    """
    text = " ".join(str(error).split())
    text = "".join(c if c.isprintable() else "\ufffd" for c in text)
    return (text if most is None else text[:most]) or type(error).__name__
