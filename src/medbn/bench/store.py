"""Results in one SQLite file, with one transaction per finished batch: a crash loses only the batch in progress.

A process claims a cell before it works on it. A claim ends with its process, which is recognised by its number and
start time, or, if the process runs on another host, when its lease expires. A process that has lost its claim can no
longer write to that cell.
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .store_format import StoreError, check_header, create_tables

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


class Store:
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
        self.path = Path(path)
        self.clock = clock
        self.owner = (socket.gethostname(), os.getpid(), start_time(os.getpid()) or "")
        if self.path.is_dir():
            raise StoreError(f"{self.path} is a folder; a store is a file.")
        new = not self.path.exists() or self.path.stat().st_size == 0
        if new and not create:
            raise StoreError(f"no store {self.path}.")
        if not new:
            check_header(self.path)
        try:
            self.connection = sqlite3.connect(self.path, timeout=60, isolation_level=None)
        except sqlite3.OperationalError as error:
            raise StoreError(f"cannot write to {self.path}: {error}.") from None
        try:
            # SQLite first rolls back what a killed process had left half written; check the result of that.
            damage = self.connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if damage != "ok":
                raise StoreError(f"{self.path} is damaged ({damage}). Move it away to start anew.")
            if new:
                with self._transaction():
                    if self._pragma("application_id") == 0:
                        create_tables(self.connection)
        except sqlite3.OperationalError as error:
            self.connection.close()
            raise StoreError(f"cannot write to {self.path}: {error}.") from None
        except sqlite3.DatabaseError as error:
            self.connection.close()
            raise StoreError(f"{self.path} is damaged ({error}). Move it away to start anew.") from None
        except StoreError:
            self.connection.close()
            raise

    def _pragma(self, name: str) -> int:
        return int(self.connection.execute(f"PRAGMA {name}").fetchone()[0])

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self.connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:  # SQLite has rolled back already where the disk is full
                    self.connection.execute("ROLLBACK")
                raise
        except sqlite3.OperationalError as error:
            raise StoreError(f"cannot write to {self.path}: {error}. Finished batches are stored.") from error

    # --- working on a cell --------------------------------------------------------------------------------------------

    def claim(self, key: str, cell: dict[str, Any], facts: dict[str, Any]) -> bool:
        """Reserve a cell for this process; return False if another living process has it."""
        with self._transaction() as db:
            row = db.execute("SELECT host, pid, born, until FROM cells WHERE key = ?", (key,)).fetchone()
            if row is None:
                db.execute(
                    "INSERT INTO cells (key, cell, facts) VALUES (?, ?, ?)", (key, json.dumps(cell), json.dumps(facts))
                )
            elif row[0] is not None and not self._has_ended(*row):
                return False
            values = (*self.owner, self.clock() + LEASE, key)
            db.execute("UPDATE cells SET host = ?, pid = ?, born = ?, until = ? WHERE key = ?", values)
        return True

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
    ) -> None:
        """Store a finished batch and the state after it, or nothing.

        Args:
            key: the key of a cell that this process has claimed.
            number: of the batch, from 0 on.
            metrics: its numbers.
            state: everything that the next batch depends on.
            examples: pairs of PNG images, clean and poisoned.
            seconds: how long the batch took, which extends the lease.
        """
        with self._transaction() as db:
            until = self.clock() + max(LEASE, 10 * seconds)
            cursor = db.execute(
                "UPDATE cells SET state = ?, until = ? WHERE key = ? AND host = ? AND pid = ? AND born = ?",
                (state, until, key, *self.owner),
            )
            if cursor.rowcount != 1:
                raise LostClaimError(
                    "another process has taken this cell over, because the claim of this one had expired."
                )
            db.execute(
                "INSERT INTO batches (key, number, metrics) VALUES (?, ?, ?)", (key, number, json.dumps(metrics))
            )
            full = db.execute("SELECT count(*) >= ? FROM examples", (MAX_EXAMPLES,)).fetchone()[0]
            for place, pair in enumerate(() if full else examples or ()):
                db.execute("INSERT OR REPLACE INTO examples VALUES (?, ?, ?, ?)", (key, place, *pair))

    def release(self, key: str) -> None:
        """Give up the claim of this process on a cell."""
        with self._transaction() as db:
            db.execute(
                "UPDATE cells SET host = NULL, pid = NULL, born = NULL, until = NULL"
                " WHERE key = ? AND host = ? AND pid = ? AND born = ?",
                (key, *self.owner),
            )

    def progress(self, key: str) -> tuple[int, bytes | None]:
        """Return how many batches of a cell are stored, and the state after the last."""
        row = self.connection.execute("SELECT state FROM cells WHERE key = ?", (key,)).fetchone()
        done = self.connection.execute("SELECT count(*) FROM batches WHERE key = ?", (key,)).fetchone()[0]
        return int(done), row[0] if row else None

    def seal(self, path: str | Path) -> None:
        """Copy the results into a new file, without the states from which streams continue, which take most space."""
        if Path(path).exists():
            raise StoreError(f"{path} exists already.")
        self.connection.execute("VACUUM INTO ?", (str(path),))
        with Store(path) as copy:
            copy.connection.execute("UPDATE cells SET state = NULL, host = NULL, pid = NULL, born = NULL, until = NULL")
            copy.connection.execute("VACUUM")

    # --- runs ---------------------------------------------------------------------------------------------------------

    def begin_run(self, recipe: dict[str, Any], command: str, facts: dict[str, Any], keys: list[str]) -> int:
        """Record that a run begins, and which cells it has; return its number."""
        with self._transaction() as db:
            cursor = db.execute(
                "INSERT INTO runs (recipe, command, facts, began) VALUES (?, ?, ?, ?)",
                (json.dumps(recipe), command, json.dumps(facts), self.clock()),
            )
            run = int(cursor.lastrowid or 0)
            db.executemany("INSERT OR IGNORE INTO members VALUES (?, ?)", [(run, key) for key in keys])
        return run

    def end_run(self, run: int) -> None:
        """Record that all cells of a run are finished."""
        with self._transaction() as db:
            db.execute("UPDATE runs SET ended = ? WHERE id = ?", (self.clock(), run))

    def runs(self) -> list[Run]:
        """Return all runs, the latest last."""
        rows = self.connection.execute("SELECT id, recipe, command, facts, began, ended FROM runs ORDER BY id")
        return [
            Run(id_, json.loads(recipe), command, json.loads(facts), began, ended, self._members(id_))
            for id_, recipe, command, facts, began, ended in rows.fetchall()
        ]

    def _members(self, run: int) -> tuple[str, ...]:
        return tuple(key for (key,) in self.connection.execute("SELECT key FROM members WHERE run = ?", (run,)))

    def cells(self) -> list[StoredCell]:
        """Return all cells that have a batch, with their batches in order."""
        cells = {
            key: StoredCell(key, json.loads(cell), json.loads(facts))
            for key, cell, facts in self.connection.execute("SELECT key, cell, facts FROM cells ORDER BY rowid")
        }
        for key, metrics in self.connection.execute("SELECT key, metrics FROM batches ORDER BY key, number"):
            cells[key].batches.append(json.loads(metrics))
        return [stored for stored in cells.values() if stored.batches]

    def examples(self, key: str) -> list[tuple[bytes, bytes]]:
        """Return the example images of a cell as pairs of PNG files: clean, poisoned."""
        rows = self.connection.execute("SELECT clean, poisoned FROM examples WHERE key = ? ORDER BY place", (key,))
        return [(clean, poisoned) for clean, poisoned in rows]
