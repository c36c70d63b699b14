"""The classes of a segmentation dataset: names, colours, and the numbers that stand for them in label files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._errors import abbreviate, unknown_name
from ..._files import read_toml
from ..dataset import digest
from .dataset import IGNORE, Colour

_UNKNOWN = -1


@dataclass(frozen=True)
class ClassTable:
    """The classes of a dataset, and the numbers that stand for them in its label files."""

    names: tuple[str, ...]
    colours: tuple[Colour, ...]
    numbers: Mapping[int, int] = field(repr=False)
    """Which class each number is: the index of its name, or ``IGNORE`` for pixels that do not count."""

    @classmethod
    def in_order(cls, classes: Mapping[str, Colour]) -> ClassTable:
        """Return a table whose classes have the numbers 0, 1, 2 and so on; 255 does not count."""
        numbers = {number: number for number in range(len(classes))}
        return cls(tuple(classes), tuple(classes.values()), numbers | {IGNORE: IGNORE})

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything that the table says."""
        return digest("\n".join(self.names), repr(sorted(self.numbers.items())))

    @property
    def scored(self) -> tuple[int, ...]:
        """The classes that some number stands for."""
        return tuple(sorted({index for index in self.numbers.values() if index != IGNORE}))

    def without(self, names: Sequence[str]) -> ClassTable:
        """Return a table in which the pixels of some classes do not count; the other classes keep their index."""
        left_out = {self.names.index(name) for name in names}
        numbers = {number: IGNORE if index in left_out else index for number, index in self.numbers.items()}
        return ClassTable(self.names, self.colours, numbers)

    def to_labels(self, values: npt.NDArray[Any], file: Path) -> npt.NDArray[np.uint8]:
        """Return class indices for the numbers of a label file; a number that is not in the table is an error.

        Args:
            values: the numbers, (H, W).
            file: where they come from, for the error.
        """
        largest = max(self.numbers)
        lookup = np.full(largest + 2, _UNKNOWN, dtype=np.int16)
        lookup[list(self.numbers)] = list(self.numbers.values())
        labels = lookup[np.clip(values.astype(np.int64), -1, largest + 1)]
        if (labels == _UNKNOWN).any():
            row, column = np.argwhere(labels == _UNKNOWN)[0]
            known = ", ".join(_as_ranges(sorted(self.numbers)))
            raise ValueError(
                f"{file} has the label {values[row, column]} (row {row}, column {column}); expected {known}."
            )
        return labels.astype(np.uint8)


def read_class_table(file: Path, known: Mapping[str, ClassTable]) -> ClassTable:
    """Return the class table of a TOML file.

    It is the name of a known table, ``classes = "cityscapes"``; or one ``[[classes]]`` per class with a ``name``, a
    ``colour`` of three numbers and the ``labels`` that stand for it (by default its position, from 0), and ``ignore``,
    the labels that do not count (by default 255).

    Args:
        file: the file.
        known: tables by name.
    """
    values = read_toml(file)
    try:
        return _read_table(values, known)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file}: {error}") from None


def _read_table(values: dict[str, Any], known: Mapping[str, ClassTable]) -> ClassTable:
    _check_keys(values, ("classes", "ignore"))
    classes, ignore = values.get("classes"), values.get("ignore", [IGNORE])
    if isinstance(classes, str):
        if classes not in known:
            raise unknown_name("class table", classes, known)
        return known[classes]
    if not isinstance(classes, list) or not classes:
        raise ValueError('expected one [[classes]] per class, or classes = "NAME" of a known table.')
    if len(classes) > IGNORE:
        raise ValueError(f"expected at most {IGNORE} classes, got {len(classes)}.")
    numbers: dict[int, int] = {}
    names: list[str] = []
    colours: list[Colour] = []
    for index, entry in enumerate(classes):
        _check_keys(entry, ("name", "colour", "labels"))
        name, colour = entry.get("name"), entry.get("colour")
        if not isinstance(name, str) or not name or name in names:
            raise ValueError(f"class {index} needs a name of its own, got {name!r}.")
        if not (isinstance(colour, list) and len(colour) == 3 and all(_is_byte(part) for part in colour)):
            raise ValueError(f"the class {name!r} needs a colour = [RED, GREEN, BLUE] from 0 to 255, got {colour!r}.")
        names.append(name)
        colours.append((colour[0], colour[1], colour[2]))
        _add_numbers(numbers, entry.get("labels", [index]), index, name)
    _add_numbers(numbers, ignore, IGNORE, "ignore")
    return ClassTable(tuple(names), tuple(colours), numbers)


def _add_numbers(numbers: dict[int, int], labels: Any, index: int, name: str) -> None:
    if not isinstance(labels, list) or not all(_is_byte(label) for label in labels):
        raise ValueError(f"the labels of {name!r} must be a list of whole numbers from 0 to 255, got {labels!r}.")
    for label in labels:
        if label in numbers:
            raise ValueError(f"the label {label} stands for two classes; one is {name!r}.")
        numbers[label] = index


def _is_byte(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 255


def _check_keys(values: Any, expected: tuple[str, ...]) -> None:
    if not isinstance(values, dict):
        raise ValueError(f"expected {abbreviate(expected)}, got {values!r}.")
    for key in values:
        if key not in expected:
            raise unknown_name("key", key, expected)


def _as_ranges(numbers: Sequence[int]) -> list[str]:
    """Return sorted numbers as texts such as "0 to 33" and "255"."""
    starts = [k for k, number in enumerate(numbers) if k == 0 or numbers[k - 1] != number - 1]
    spans = [(numbers[a], numbers[b - 1]) for a, b in zip(starts, [*starts[1:], len(numbers)], strict=True)]
    return [str(first) if first == last else f"{first} to {last}" for first, last in spans]
