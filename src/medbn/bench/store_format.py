"""The file format of a store: an SQLite file with these tables, an application number and a format number.

Format 2 has a checksum in every row, so that a store that a disk or a program has damaged is recognised. A store of
format 1, without checksums, is read as it is, and gets format 2 when something is stored in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from pathlib import Path

FORMAT = 2
FORMATS = (1, 2)
"""The formats that can be read."""
APPLICATION = 0x4D64424E  # "MdBN", in the file's header

SCHEMA = """
CREATE TABLE cells (
    key TEXT PRIMARY KEY, cell TEXT NOT NULL, facts TEXT NOT NULL, state BLOB,
    host TEXT, pid INTEGER, born TEXT, until REAL
);
CREATE TABLE batches (
    key TEXT NOT NULL REFERENCES cells(key), number INTEGER NOT NULL, metrics TEXT NOT NULL,
    PRIMARY KEY (key, number)
) WITHOUT ROWID;
CREATE TABLE examples (
    key TEXT NOT NULL REFERENCES cells(key), place INTEGER NOT NULL, clean BLOB NOT NULL, poisoned BLOB NOT NULL,
    PRIMARY KEY (key, place)
) WITHOUT ROWID;
CREATE TABLE runs (
    id INTEGER PRIMARY KEY, recipe TEXT NOT NULL, command TEXT NOT NULL, facts TEXT NOT NULL,
    began REAL NOT NULL, ended REAL
);
CREATE TABLE members (
    run INTEGER NOT NULL REFERENCES runs(id), key TEXT NOT NULL, PRIMARY KEY (run, key)
) WITHOUT ROWID;
"""
"""The tables of format 1, to which ``add_checksums`` adds columns."""

CHECKED = {
    "cells": ("key", "cell", "facts"),
    "batches": ("key", "number", "metrics"),
    "examples": ("key", "place", "clean", "poisoned"),
    "runs": ("id", "recipe", "command", "facts", "began", "ended"),
    "members": ("run", "key"),
}
"""The columns that the checksum of a row covers, by table. The claim of a process on a cell has none; the state of a
cell has its own, which also covers the number of batches."""


ADDED = {
    "figures": ("key", "name", "numbers", "settings", "command", "facts", "seconds"),
    "poisoned": ("key", "number", "images", "cell", "facts", "seconds"),
}
"""Tables that a store gets when something is put into them, with the columns that a row's checksum covers: the numbers
of the paper's figures, and the malicious images from which they are computed."""

ADDED_SCHEMA = {
    "figures": """CREATE TABLE IF NOT EXISTS figures (
        key TEXT PRIMARY KEY, name TEXT NOT NULL, numbers TEXT NOT NULL, settings TEXT NOT NULL,
        command TEXT NOT NULL, facts TEXT NOT NULL, seconds REAL NOT NULL, checksum BLOB
    )""",
    "poisoned": """CREATE TABLE IF NOT EXISTS poisoned (
        key TEXT NOT NULL, number INTEGER NOT NULL, images BLOB NOT NULL, cell TEXT NOT NULL, facts TEXT NOT NULL,
        seconds REAL NOT NULL, checksum BLOB, PRIMARY KEY (key, number)
    )""",
}


class StoreError(ValueError):
    """The file is not a store of medbn, or cannot be used."""


def checksum(*values: str | bytes | float | None) -> bytes:
    """Return the checksum of the values of a row."""
    total = hashlib.blake2b(digest_size=8)
    for value in values:
        content = value if isinstance(value, bytes) else repr(value).encode("utf-8", "surrogatepass")
        total.update(f"{type(value).__name__} {len(content)} ".encode())
        total.update(content)
    return total.digest()


def create_tables(connection: sqlite3.Connection) -> None:
    """Make an empty file a store, within the transaction that is open."""
    for statement in SCHEMA.split(";"):
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    add_checksums(connection)


def add_checksums(connection: sqlite3.Connection) -> None:
    """Turn a store of format 1 into one of format 2, within the transaction that is open."""
    connection.create_function("checksum", -1, checksum, deterministic=True)
    for table, columns in CHECKED.items():
        connection.execute(f"ALTER TABLE {table} ADD COLUMN checksum BLOB")
        connection.execute(f"UPDATE {table} SET checksum = checksum({', '.join(columns)})")
    connection.execute("ALTER TABLE cells ADD COLUMN state_checksum BLOB")
    connection.execute(
        "UPDATE cells SET state_checksum = checksum(key, state, (SELECT count(*) FROM batches WHERE key = cells.key))"
        " WHERE state IS NOT NULL"
    )
    connection.execute(f"PRAGMA user_version = {FORMAT}")


def check_header(path: Path) -> None:
    """Raise a StoreError if a file is not a store of medbn; reads its header only, so that it is never changed."""
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}.") from None
    if not header.startswith(b"SQLite format 3\x00") or len(header) < 100:
        raise StoreError(f"{path} is not a store of medbn (no SQLite file); it was not touched.")
    version, application = (int.from_bytes(header[at : at + 4], "big") for at in (60, 68))
    if application != APPLICATION:
        raise StoreError(f"{path} is an SQLite file of another program; it was not touched.")
    if version not in FORMATS:
        formats = " and ".join(map(str, FORMATS))
        raise StoreError(f"{path} has format {version}, and this version of medbn reads {formats}; it was not touched.")


def check_schema(connection: sqlite3.Connection) -> None:
    """Raise a ValueError unless an open store has the tables of a store, and no views or triggers, which run code."""
    with contextlib.closing(sqlite3.connect(":memory:")) as expected:
        create_tables(expected)
        for statement in ADDED_SCHEMA.values():
            expected.execute(statement)
        for kind, name in connection.execute("SELECT type, name FROM sqlite_master").fetchall():
            if kind in ("view", "trigger"):
                raise ValueError(f"it has the {kind} {name!r}, which no store has")
        for table in (*CHECKED, *ADDED):
            columns, own = (
                [row[1:4] for row in db.execute(f"PRAGMA table_xinfo({table})").fetchall()]
                for db in (connection, expected)
            )
            if table in ADDED and not columns:
                continue
            if columns != own and columns != [row for row in own if not row[0].endswith("checksum")]:
                raise ValueError(f"table {table!r} is missing or has other columns")
