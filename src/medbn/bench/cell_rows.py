"""Copy what a store has of one cell into another store, and refuse numbers that contradict those that are there."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from .store import MAX_EXAMPLES, Store
from .store_format import checksum

NOT_COMPARED = ("attack_s", "adapt_s", "shared", "device")
"""Entries of a batch's metrics that say where and how fast it was computed: they may differ between two runs."""


class ContradictionError(ValueError):
    """Two stores have different numbers for the same batch."""


@dataclass(frozen=True)
class CellRows:
    """Rows of one cell as plain values, which can be sent to another process.

    Args:
        key: the key of the cell.
        cell: the cell as stored JSON.
        facts: about the machine, as stored JSON.
        first: the number of the first of these batches.
        batches: the stored metrics of the batches.
        state: from which the cell continues after the last of these batches; None in a sealed store.
        examples: pairs of example images, by their place.
    """

    key: str
    cell: str
    facts: str
    first: int = 0
    batches: tuple[str, ...] = ()
    state: bytes | None = None
    examples: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """The number of batches of the cell after the last of these."""
        return self.first + len(self.batches)

    @property
    def label(self) -> str:
        """The cell in a few words; its key if the stored text says too little."""
        try:
            values = json.loads(self.cell)
            words = (values["setting"]["data"], values["corruption"], values["method"], "+", values["estimator"])
            attack = values["attack"]["objective"] if values["attack"] else "no attack"
            return f"{' '.join(words)}, {attack}, seed {values['seed']}"
        except (KeyError, TypeError, ValueError):
            return f"cell {self.key:.12}"


def read_rows(store: Store, key: str, first: int = 0) -> CellRows:
    """Return what a store has of a cell, from batch ``first`` on."""
    with store.reading():
        ((_, cell, facts),) = store.rows("cells", "WHERE key = ?", (key,))
        done, state = store.progress(key)
        batches = store.rows("batches", "WHERE key = ? AND number >= ? ORDER BY number", (key, first))
        examples = store.rows("examples", "WHERE key = ? ORDER BY place", (key,))
    if first > done:
        raise ValueError(f"the store has {done} batches of the cell {key:.12}, so none from {first} on.")
    pairs = {place: (clean, poisoned) for _, place, clean, poisoned in examples}
    return CellRows(key, cell, facts, first, tuple(metrics for *_, metrics in batches), state, pairs)


def add_rows(store: Store, rows: CellRows) -> int:
    """Add rows to a store, within its open transaction; return how many batches are new.

    Batches that the store has already must be the same, except for times. A ContradictionError says which are not.
    """
    known = store.rows("batches", "WHERE key = ? ORDER BY number", (rows.key,))
    if rows.first > len(known):
        raise ValueError(f"batch {len(known)} of {rows.label} is missing before batch {rows.first}.")
    for (_, number, ours), theirs in zip(known[rows.first :], rows.batches, strict=False):
        _compare(rows.label, number, store.parse(ours, "a batch"), store.parse(theirs, "a batch"))
    db = store.connection
    if not store.rows("cells", "WHERE key = ?", (rows.key,)):
        store.insert("cells", rows.key, rows.cell, rows.facts)
    elif not known:  # it was only claimed: its facts are those of the machine that ran it
        total = checksum(rows.key, rows.cell, rows.facts)
        db.execute(
            "UPDATE cells SET cell = ?, facts = ?, checksum = ? WHERE key = ?", (rows.cell, rows.facts, total, rows.key)
        )
    new = rows.batches[len(known) - rows.first :]
    for number, metrics in enumerate(new, start=len(known)):
        store.insert("batches", rows.key, number, metrics)
    if new or (rows.state is not None and rows.end == len(known)):
        total_state = None if rows.state is None else checksum(rows.key, rows.state, rows.end)
        db.execute("UPDATE cells SET state = ?, state_checksum = ? WHERE key = ?", (rows.state, total_state, rows.key))
    stored = {place for _, place, *_ in store.rows("examples", "WHERE key = ?", (rows.key,))}
    for place, pair in rows.examples.items():
        full = db.execute("SELECT count(*) >= ? FROM examples", (MAX_EXAMPLES,)).fetchone()[0]
        if place not in stored and not full:
            store.insert("examples", rows.key, place, *pair)
    return len(new)


def _compare(label: str, number: int, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Raise a ContradictionError if two metrics of a batch differ in anything but times and the device."""
    names = [name for name in {**ours, **theirs} if name not in NOT_COMPARED]
    for name in names:
        pair = [json.dumps(metrics.get(name)) for metrics in (ours, theirs)]  # NaN is equal to itself as text
        if pair[0] != pair[1]:
            devices = [metrics.get("device", "an unknown device") for metrics in (ours, theirs)]
            raise ContradictionError(
                f"{label}, batch {number}: {name} is {pair[0]} ({devices[0]}) and {pair[1]} ({devices[1]})"
            )
