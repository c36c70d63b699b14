"""Check values against annotated types, so that a mistake is an error in the words of this package."""

from __future__ import annotations

from dataclasses import fields
from numbers import Integral, Real
from typing import Any

from torch import Tensor

KINDS = {"str": "a text", "int": "a whole number", "float": "a number", "bool": "True or False"}


def wrong_type(value: object, annotation: str) -> str:
    """Return what is wrong with a value, such as "must be a number, got 'x'."; "" if it has the annotated type.

    Types are checked that are one of ``KINDS``, also with ``| None`` or ``| Tensor``. NaN is no number.

    >>> wrong_type("0.1", "float"), wrong_type(None, "float | None")
    ("must be a number, got '0.1'.", '')
    """
    names = annotation.replace(" ", "").split("|")
    if (value is None and "None" in names) or (isinstance(value, Tensor) and "Tensor" in names):
        return ""
    kinds = [name for name in names if name not in ("None", "Tensor")]
    if len(kinds) != 1 or kinds[0] not in KINDS:
        return ""
    kind = kinds[0]
    if kind == "str":
        right = isinstance(value, str)
    elif kind == "bool" or isinstance(value, bool):
        right = kind == "bool" and isinstance(value, bool)
    else:
        right = isinstance(value, Integral if kind == "int" else Real) and value == value
    return "" if right else f"must be {KINDS[kind]}, got {value!r}."


def check_fields(one: Any) -> None:
    """Raise a ValueError if a field of a dataclass is not of its annotated type: a file can contain anything."""
    for field in fields(one):
        problem = wrong_type(getattr(one, field.name), str(field.type))
        if problem:
            raise ValueError(f"{field.name} {problem}")


def check_bounds(bounds: Any) -> tuple[float, float]:
    """Return the smallest and the largest value that images may have, or raise."""
    pair = tuple(bounds) if isinstance(bounds, tuple | list) else ()
    if len(pair) != 2 or not all(isinstance(b, int | float) for b in pair) or not pair[0] < pair[1]:
        raise ValueError(f"bounds are the smallest and the largest value of an image, such as (0, 1); got {bounds!r}.")
    return float(pair[0]), float(pair[1])
