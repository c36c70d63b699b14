"""The formats in which a report can be written: each in a file of its own, under ``html/`` or ``export/``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .._registry import Registry
from .document import Document


@dataclass(frozen=True)
class Format:
    """One format: ``write`` returns a document as text, ``suffix`` is the ending of its files."""

    write: Callable[[Document], str]
    suffix: str


FORMATS: Registry[Format] = Registry("report format")


def register_format(
    name: str, suffix: str, *, replace: bool = False
) -> Callable[[Callable[[Document], str]], Callable[[Document], str]]:
    """Return a decorator that registers a function ``write(document) -> str`` as a format.

    Args:
        name: what ``medbn report --format`` calls it.
        suffix: the ending of its files, with its dot.
        replace: allow a name that is registered already.
    """

    def add(write: Callable[[Document], str]) -> Callable[[Document], str]:
        FORMATS.register(name, Format(write, suffix), replace=replace)
        return write

    return add
