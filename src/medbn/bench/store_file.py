"""The SQLite file of a store: it is opened and checked, written in transactions, and read row by row with checksums."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .store_format import (
    ADDED,
    ADDED_SCHEMA,
    CHECKED,
    StoreError,
    add_checksums,
    check_header,
    check_schema,
    checksum,
    create_tables,
)


class StoreFile:
    """An open store file; also a context manager.

    The file may come from a stranger: it is data. Nothing that it contains is run.

    Args:
        path: the file. Names that SQLite reads as something else, such as ``file:x.db``, are plain file names here.
        create: create the file if there is none; otherwise that is an error.
    """

    def __init__(self, path: str | Path, *, create: bool = True) -> None:
        if str(path) == ":memory:":
            raise StoreError("a store is a file: ':memory:' would keep nothing.")
        self.path = Path(path)
        if self.path.is_dir():
            raise StoreError(f"{self.path} is a folder; a store is a file.")
        if self.path.exists() and not self.path.is_file():
            raise StoreError(f"{self.path} is not a regular file; a store is a file.")
        new = not self.path.exists() or self.path.stat().st_size == 0
        if new and not create:
            raise StoreError(f"no store {self.path}.")
        if not new:
            check_header(self.path)
        try:
            # An absolute path, because SQLite may read a name that begins with "file:" as a URI of another file.
            self.connection = sqlite3.connect(os.path.abspath(self.path), timeout=60, isolation_level=None)
        except sqlite3.OperationalError as error:
            raise StoreError(f"cannot write to {self.path}: {error}.") from None
        try:
            self._check(new)
        except BaseException:
            self.connection.close()
            raise

    def _check(self, new: bool) -> None:
        """Create the tables of a new file, and raise a StoreError if those of another are damaged."""
        try:
            self.connection.execute("PRAGMA trusted_schema = OFF")
            self.connection.execute("PRAGMA cell_size_check = ON")
            # SQLite first rolls back what a killed process had left half written; check the result of that.
            damage = self.connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if damage != "ok":
                raise self.damaged(str(damage))
            if new:
                with self.transaction():
                    if self._pragma("application_id") == 0:
                        create_tables(self.connection)
            check_schema(self.connection)
        except sqlite3.OperationalError as error:
            raise StoreError(f"cannot write to {self.path}: {error}.") from None
        except sqlite3.DatabaseError as error:
            raise self.damaged(str(error)) from None
        except StoreError:
            raise
        except ValueError as error:
            raise self.damaged(str(error)) from None

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self.connection.close()

    def damaged(self, what: str) -> StoreError:
        """Return the error for a damaged store."""
        what = " ".join(what.split())  # SQLite describes damage in several lines
        return StoreError(f"{self.path} is damaged: {what}. Move it away to start anew, or restore a copy.")

    @property
    def has_checksums(self) -> bool:
        """Whether the file has format 2 or later; another process may change that at any time."""
        return self._pragma("user_version") >= 2

    def _pragma(self, name: str) -> int:
        return int(self.connection.execute(f"PRAGMA {name}").fetchone()[0])

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Store all of what is done in the context, or nothing. The file has checksums from here on."""
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                if self._pragma("user_version") == 1:
                    add_checksums(self.connection)
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:  # SQLite has rolled back already where the disk is full
                    self.connection.execute("ROLLBACK")
                raise
        except sqlite3.OperationalError as error:
            raise StoreError(f"cannot write to {self.path}: {error}. Finished batches are stored.") from error

    @contextmanager
    def reading(self) -> Iterator[None]:
        """See one state of the file in all queries of the context, while other processes store."""
        if self.connection.in_transaction:
            yield
            return
        self.connection.execute("BEGIN")
        try:
            yield
        finally:
            self.connection.execute("COMMIT")

    def insert(self, table: str, *values: Any, replace: bool = False) -> None:
        """Insert a row of the columns that its checksum covers, within a transaction."""
        if table in ADDED:
            self.connection.execute(ADDED_SCHEMA[table])
        columns = (CHECKED | ADDED)[table]
        self.connection.execute(
            f"INSERT {'OR REPLACE ' if replace else ''}INTO {table} ({', '.join(columns)}, checksum)"
            f" VALUES ({', '.join('?' * len(columns))}, ?)",
            (*values, checksum(*values)),
        )

    def rows(self, table: str, where: str = "", values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return rows with the columns that the checksum covers; a StoreError if a checksum is wrong.

        Args:
            table: its name.
            where: the rest of the query, from WHERE or ORDER BY on.
            values: of its placeholders.
        """
        if table in ADDED and not self.query("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)):
            return []
        checked = self.has_checksums
        columns = ", ".join((CHECKED | ADDED)[table]) + (", checksum" if checked else "")
        rows = self.query(f"SELECT {columns} FROM {table} {where}", values)
        if checked:
            for row in rows:
                if checksum(*row[:-1]) != row[-1]:
                    raise self.damaged(f"a row of {table} ({row[0]!s:.20}) does not match its checksum")
        return [row[:-1] if checked else row for row in rows]

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query; a StoreError if the file cannot be read."""
        try:
            return self.connection.execute(sql, values).fetchall()
        except sqlite3.OperationalError as error:
            if "UTF-8" in str(error):
                raise self.damaged("a text in it is not UTF-8") from None
            raise StoreError(f"cannot read {self.path}: {error}.") from None
        except sqlite3.DatabaseError as error:
            raise self.damaged(str(error)) from None

    def parse(self, text: Any, what: str) -> dict[str, Any]:
        """Return a stored JSON object; a StoreError that says ``what`` is damaged if it is none."""
        try:
            values = json.loads(text)
        except (TypeError, ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            raise self.damaged(f"{what} cannot be read")
        return values
