"""Merge stores: one file of results from several machines, shards or workers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cell_rows import ContradictionError, add_rows, read_rows
from .store import Store
from .store_format import ADDED, checksum

PAYLOAD = {"figures": "numbers", "poisoned": "images"}
"""The column of a table of added rows that must be the same wherever its key is."""
SHOWN = 5
"""Contradictions that an error shows; it says how many there are."""


@dataclass(frozen=True)
class Merged:
    """What a merge did.

    Args:
        cells: cells of all the stores that were merged, each counted once.
        new: cells that the target did not have.
        longer: cells of which it had fewer batches.
        batches: batches that were added.
        missing: shards of which no run was found, such as ``"3/16"``.
    """

    cells: int = 0
    new: int = 0
    longer: int = 0
    batches: int = 0
    missing: tuple[str, ...] = ()


def merge(stores: Sequence[str | Path], into: str | Path) -> Merged:
    """Add the results of stores to one store, and return what was added.

    The same batch may be in several stores if its numbers are the same to the bit; times may differ. Otherwise a
    ContradictionError names the batches, and nothing is changed. Merging a store twice changes nothing. The stores that
    are merged are only read.

    Args:
        stores: the files to merge. ``into`` may be among them, where a pattern of names includes it.
        into: the store that gets the results; it is created if there is none.
    """
    target = Path(into)
    sources = [Path(path) for path in stores if not _same_file(Path(path), target)]
    for path in sources:
        Store(path, create=False).close()  # raises before anything is created
    existed = target.exists()
    try:
        with Store(target) as opened, opened.transaction():
            return _merge(sources, opened)
    except BaseException:
        if not existed:
            target.unlink(missing_ok=True)
        raise


def _merge(sources: Sequence[Path], target: Store) -> Merged:
    contradictions: list[str] = []
    had = {stored.key: len(stored.batches) for stored in target.cells()}
    added: dict[str, int] = {}
    for path in sources:
        with Store(path, create=False) as source:
            for stored in source.cells():
                if target.is_claimed(stored.key):
                    raise ValueError(
                        f"a run is writing to {target.path}: wait for its end, or merge into another file."
                    )
                try:
                    added[stored.key] = added.get(stored.key, 0) + add_rows(target, read_rows(source, stored.key))
                except ContradictionError as error:
                    contradictions.append(f"{error} in {path}")
            for table in ADDED:
                contradictions += _add_table(table, source, target)
            _add_runs(source, target)
    if contradictions:
        shown = "; ".join(contradictions[:SHOWN]) + ("; ..." if len(contradictions) > SHOWN else "")
        raise ContradictionError(
            f"nothing was merged, because {len(contradictions)} stream{'s' if len(contradictions) > 1 else ''} of the"
            f" stores contradict what is there: {shown}. The same cells run on machines of one kind agree to the bit;"
            " keep the results of different machines in different stores."
        )
    return Merged(
        cells=len(added),
        new=sum(1 for key in added if key not in had),
        longer=sum(1 for key, count in added.items() if count and key in had),
        batches=sum(added.values()),
        missing=_missing_shards(target),
    )


def _add_table(table: str, source: Store, target: Store) -> list[str]:
    """Add the rows of a table that only some stores have; return the rows that contradict one that is there."""
    keys = 1 if table == "figures" else 2
    at = ADDED[table].index(PAYLOAD[table])
    ours = {row[:keys]: row[at] for row in target.rows(table)}
    contradictions = []
    for row in source.rows(table):
        if row[:keys] not in ours:
            target.insert(table, *row)
        elif ours[row[:keys]] != row[at]:
            contradictions.append(f"{table} {row[0]!s:.12}: other {PAYLOAD[table]} in {source.path}")
    return contradictions


def _add_runs(source: Store, target: Store) -> None:
    """Add the runs of a store, each once: a run that is there already gets its end and the cells that it lacks."""
    known: dict[Any, int] = {(run[1:5]): run[0] for run in target.rows("runs")}
    members: dict[int, list[str]] = {}
    for run, key in source.rows("members", "ORDER BY run, key"):
        members.setdefault(run, []).append(key)
    for number, *row in source.rows("runs", "ORDER BY id"):
        *identity, ended = row
        run = known.get(tuple(identity))
        if run is None:
            run = int(target.query("SELECT coalesce(max(id), 0) + 1 FROM runs")[0][0])
            target.insert("runs", run, *row)
        elif ended is not None:
            total = checksum(run, *row)
            target.connection.execute("UPDATE runs SET ended = ?, checksum = ? WHERE id = ?", (ended, total, run))
        present = {key for _, key in target.rows("members", "WHERE run = ?", (run,))}
        for key in members.get(number, ()):
            if key not in present:
                target.insert("members", run, key)


def _missing_shards(store: Store) -> tuple[str, ...]:
    """Return the shards of sharded runs of which a store has no finished run."""
    finished: dict[tuple[str, int], set[int]] = {}
    for run in store.runs():
        shard = re.fullmatch(r"(\d{1,6})/(\d{1,6})", str(run.facts.get("shard", "")))
        if shard:
            found = finished.setdefault((str(run.recipe.get("name")), int(shard[2])), set())
            found.update([int(shard[1])] if run.ended is not None else [])
    return tuple(
        f"{number}/{count} of {name}"
        for (name, count), found in finished.items()
        for number in range(1, count + 1)
        if number not in found
    )


def _same_file(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)
