"""Results in one SQLite file, with one transaction per finished batch: a crash loses only the batch in progress.

A process claims a cell before it works on it. A claim ends with its process, which is recognised by its number and
start time, or, if the process runs on another host, when its lease expires. A process that has lost its claim can no
longer write to that cell.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .store_file import StoreFile
from .store_format import StoreError, checksum

LEASE = 15 * 60.0
"""Seconds after which a claim from another host expires unless it stores a batch; more if batches take longer."""

MAX_EXAMPLES = 240
"""Example images in a store, which is meant to stay small."""


class LostClaimError(RuntimeError):
    """Another process works on this cell now, because the claim of this one has expired."""


@dataclass(frozen=True)
class StoredCell:
    """A cell as plain values, with the metrics of its batches."""

    key: str
    cell: dict[str, Any]
    facts: dict[str, Any]
    batches: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Run:
    """One call of ``bench.run`` for a recipe: the command that repeats it, and the keys of its cells."""

    id: int
    recipe: dict[str, Any]
    command: str
    facts: dict[str, Any]
    began: float
    ended: float | None
    keys: tuple[str, ...]


def start_time(pid: int) -> str | None:
    """Return when a process was started, in the system's own units.

    None if there is no such process, and "" where the system does not tell.
    """
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except PermissionError:
        pass
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return None if after_name[0] == "Z" else after_name[19]


class Store(StoreFile):
    """An open store; also a context manager.

    Args:
        path: the file.
        create: create the file if there is none; otherwise that is an error.
        clock: returns the time in seconds.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "results.db") as store:
    ...     store.cells()
    []
    """

    def __init__(self, path: str | Path, *, create: bool = True, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.owner = (socket.gethostname(), os.getpid(), start_time(os.getpid()) or "")
        super().__init__(path, create=create)

    def __enter__(self) -> Store:
        return self

    # --- working on a cell --------------------------------------------------------------------------------------------

    def claim(self, key: str, cell: dict[str, Any], facts: dict[str, Any]) -> bool:
        """Reserve a cell for this process; return False if another living process has it."""
        with self.transaction() as db:
            row = db.execute("SELECT host, pid, born, until FROM cells WHERE key = ?", (key,)).fetchone()
            if row is None:
                self.insert("cells", key, json.dumps(cell), json.dumps(facts))
            elif row[0] is not None and not self._has_ended(*row):
                return False
            values = (*self.owner, self.clock() + LEASE, key)
            db.execute("UPDATE cells SET host = ?, pid = ?, born = ?, until = ? WHERE key = ?", values)
        return True

    def is_claimed(self, key: str) -> bool:
        """Return whether another living process works on a cell."""
        rows = self.query("SELECT host, pid, born, until FROM cells WHERE key = ?", (key,))
        return bool(rows) and rows[0][0] is not None and not self._has_ended(*rows[0])

    def _has_ended(self, host: str, pid: int, born: str, until: float) -> bool:
        """Return whether a claim no longer counts."""
        if (host, pid, born) == self.owner:
            return True  # of this process, from before an error
        if host != self.owner[0]:
            return self.clock() > until
        return start_time(pid) != born

    def commit(
        self,
        key: str,
        number: int,
        metrics: dict[str, Any],
        state: bytes,
        examples: list[tuple[bytes, bytes]] | None = None,
        seconds: float = 0.0,
        *,
        first_example: int = 0,
    ) -> None:
        """Store a finished batch and the state after it, or nothing.

        Args:
            key: the key of a cell that this process has claimed.
            number: of the batch, from 0 on.
            metrics: its numbers.
            state: everything that the next batch depends on.
            examples: pairs of PNG images, clean and poisoned; for segmentation, the pairs of a ``Strip``.
            seconds: how long the batch took, which extends the lease.
            first_example: the place of the first of these examples among those of the cell.
        """
        with self.transaction() as db:
            until = self.clock() + max(LEASE, 10 * seconds)
            cursor = db.execute(
                "UPDATE cells SET state = ?, state_checksum = ?, until = ?"
                " WHERE key = ? AND host = ? AND pid = ? AND born = ?",
                (state, checksum(key, state, number + 1), until, key, *self.owner),
            )
            if cursor.rowcount != 1:
                raise LostClaimError(
                    "another process has taken this cell over, because the claim of this one had expired."
                )
            self.insert("batches", key, number, json.dumps(metrics))
            full = db.execute("SELECT count(*) >= ? FROM examples", (MAX_EXAMPLES,)).fetchone()[0]
            for place, pair in enumerate(() if full else examples or (), start=first_example):
                self.insert("examples", key, place, *pair, replace=True)

    def renew_claims(self) -> None:
        """Extend the lease of all claims of this process."""
        with self.transaction() as db:
            until = self.clock() + LEASE
            db.execute(
                "UPDATE cells SET until = max(until, ?) WHERE host = ? AND pid = ? AND born = ?", (until, *self.owner)
            )

    def release(self, key: str) -> None:
        """Give up the claim of this process on a cell."""
        with self.transaction() as db:
            db.execute(
                "UPDATE cells SET host = NULL, pid = NULL, born = NULL, until = NULL"
                " WHERE key = ? AND host = ? AND pid = ? AND born = ?",
                (key, *self.owner),
            )

    def progress(self, key: str) -> tuple[int, bytes | None]:
        """Return how many batches of a cell are stored, and the state after the last."""
        done = len(self._batches(key))
        for state, *sums in self.query(
            f"SELECT state{', state_checksum' if self.has_checksums else ''} FROM cells WHERE key = ?", (key,)
        ):
            if state is not None and (not isinstance(state, bytes) or (sums and sums[0] != checksum(key, state, done))):
                raise self.damaged(f"the state of the cell {key!s:.20} after batch {done} does not match its checksum")
            return done, state
        if done:
            raise self.damaged(f"it has batches of the cell {key!s:.20}, but not the cell")
        return 0, None

    def _batches(self, key: str | None = None) -> list[tuple[str, dict[str, Any]]]:
        """Return the key of the cell and the metrics of each batch, of one cell or all, in order."""
        where = ("", ()) if key is None else ("WHERE key = ?", (key,))
        batches: list[tuple[str, dict[str, Any]]] = []
        counts: dict[str, int] = {}
        for of, number, metrics in self.rows("batches", f"{where[0]} ORDER BY key, number", where[1]):
            what = f"batch {number} of the cell {of!s:.20}"
            if number != counts.get(of, 0):
                raise self.damaged(f"{what} is not the next one after {counts.get(of, 0)} batches")
            counts[of] = number + 1
            batches.append((of, self.parse(metrics, what)))
        return batches

    def seal(self, path: str | Path, *, pictures: bool = True) -> None:
        """Copy the results into a new file, without the states from which streams continue, which take most space.

        Args:
            path: the new file.
            pictures: copy the example images too; False where images are not yours to pass on.
        """
        if Path(path).exists():
            raise StoreError(f"{path} exists already.")
        self.connection.execute("VACUUM INTO ?", (os.path.abspath(path),))
        with Store(path) as copy:
            with copy.transaction() as db:
                db.execute(
                    "UPDATE cells SET state = NULL, state_checksum = NULL,"
                    " host = NULL, pid = NULL, born = NULL, until = NULL"
                )
                db.execute("DROP TABLE IF EXISTS poisoned")
                if not pictures:
                    db.execute("DELETE FROM examples")
            copy.connection.execute("VACUUM")

    # --- runs ---------------------------------------------------------------------------------------------------------

    def begin_run(self, recipe: dict[str, Any], command: str, facts: dict[str, Any], keys: list[str]) -> int:
        """Record that a run begins, and which cells it has; return its number."""
        with self.transaction() as db:
            run = int(db.execute("SELECT coalesce(max(id), 0) + 1 FROM runs").fetchone()[0])
            self.insert("runs", run, json.dumps(recipe), command, json.dumps(facts), self.clock(), None)
            for key in dict.fromkeys(keys):
                self.insert("members", run, key)
        return run

    def end_run(self, run: int) -> None:
        """Record that all cells of a run are finished."""
        with self.transaction() as db:
            for row in self.rows("runs", "WHERE id = ?", (run,)):
                row = (*row[:-1], self.clock())
                db.execute("UPDATE runs SET ended = ?, checksum = ? WHERE id = ?", (row[-1], checksum(*row), run))

    def runs(self) -> list[Run]:
        """Return all runs, the latest last."""
        members: dict[int, list[str]] = {}
        for run, key in self.rows("members", "ORDER BY run, key"):
            members.setdefault(run, []).append(key)
        runs = []
        for id_, recipe, command, facts, began, ended in self.rows("runs", "ORDER BY id"):
            what = f"run {id_}"
            if not isinstance(command, str) or not isinstance(began, float) or not isinstance(ended, float | None):
                raise self.damaged(f"{what} cannot be read")
            keys = tuple(members.get(id_, ()))
            runs.append(Run(id_, self.parse(recipe, what), command, self.parse(facts, what), began, ended, keys))
        return runs

    def cells(self) -> list[StoredCell]:
        """Return all cells that have a batch, with their batches in order."""
        cells = {}
        for key, cell, facts in self.rows("cells", "ORDER BY rowid"):
            what = f"the cell {key!s:.20}"
            cells[key] = StoredCell(key, self.parse(cell, what), self.parse(facts, what))
        for key, metrics in self._batches():
            if key not in cells:
                raise self.damaged(f"it has batches of the cell {key!s:.20}, but not the cell")
            cells[key].batches.append(metrics)
        for (key,) in self.query("SELECT key FROM examples WHERE key NOT IN (SELECT key FROM cells) LIMIT 1"):
            raise self.damaged(f"it has example images of the cell {key!s:.20}, but not the cell")
        return [stored for stored in cells.values() if stored.batches]

    def examples(self, key: str) -> list[tuple[bytes, bytes]]:
        """Return the example images of a cell as pairs of PNG files: clean, poisoned; strips of segmentation."""
        pairs = [row[2:] for row in self.rows("examples", "WHERE key = ? ORDER BY place", (key,))]
        for clean, poisoned in pairs:
            if not isinstance(clean, bytes) or not isinstance(poisoned, bytes):
                raise self.damaged(f"an example image of the cell {key!s:.20} cannot be read")
        return pairs
