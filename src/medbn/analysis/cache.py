"""Numbers and poisoned batches in a store, each in a table of their own beside the cells of the bench."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..bench import Store
from .numbers import Numbers


def read_numbers(store: Store, key: str) -> Numbers | None:
    """Return the numbers that are stored under a key, or None."""
    for row in store.rows("figures", "WHERE key = ?", (key,)):
        return _numbers(store, *row)
    return None


def stored_numbers(store: Store) -> list[Numbers]:
    """Return the numbers of all figures in a store, the latest last."""
    return [_numbers(store, *row) for row in store.rows("figures", "ORDER BY rowid")]


def _numbers(
    store: Store, key: str, name: str, numbers: str, settings: str, command: str, facts: str, seconds: float
) -> Numbers:
    what = f"the numbers of the figure {name!s:.20}"
    values = store.parse(numbers, what)
    try:
        return Numbers(
            name,
            store.parse(settings, what),
            values["rows"],
            values["details"],
            command,
            store.parse(facts, what),
            seconds,
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise store.damaged(f"{what} cannot be read") from None


def write_numbers(store: Store, key: str, numbers: Numbers) -> None:
    """Store the numbers of a figure, in the place of those that the key has."""
    values = json.dumps({"rows": numbers.rows, "details": numbers.details}, allow_nan=False)
    settings, facts = json.dumps(numbers.settings), json.dumps(numbers.machine)
    row = (key, numbers.figure, values, settings, numbers.command, facts, float(numbers.seconds))
    with store.transaction():
        store.insert("figures", *row, replace=True)


def read_poisoned(store: Store, key: str, number: int, shape: tuple[int, ...]) -> Tensor | None:
    """Return the malicious images of a batch, or None if they are not stored."""
    for row in store.rows("poisoned", "WHERE key = ? AND number = ?", (key, number)):
        try:
            images = np.load(io.BytesIO(row[2]), allow_pickle=False)
            if images.shape != shape or images.dtype != np.float32:
                raise ValueError
        except (TypeError, ValueError, EOFError):
            raise store.damaged(f"the poisoned batch {number} of the cell {key!s:.20} cannot be read") from None
        return torch.from_numpy(images)
    return None


def write_poisoned(
    store: Store, key: str, number: int, images: Tensor, cell: dict[str, Any], facts: dict[str, Any], seconds: float
) -> None:
    """Store the malicious images of a batch, with the cell and the machine that crafted them."""
    file = io.BytesIO()
    np.save(file, images.float().contiguous().numpy(), allow_pickle=False)
    row = (key, number, file.getvalue(), json.dumps(cell), json.dumps(facts), float(seconds))
    with store.transaction():
        store.insert("poisoned", *row, replace=True)
