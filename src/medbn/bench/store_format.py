"""The file format of a store: an SQLite file with these tables, an application number and a format number."""

from __future__ import annotations

import sqlite3
from pathlib import Path

FORMAT = 1
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


class StoreError(ValueError):
    """The file is not a store of medbn, or cannot be used."""


def create_tables(connection: sqlite3.Connection) -> None:
    """Make an empty file a store, within the transaction that is open."""
    for statement in SCHEMA.split(";"):
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")


def check_header(path: Path) -> None:
    """Raise a StoreError if a file is not a store of medbn; reads its header only, so that it is never changed."""
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except PermissionError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}.") from None
    if not header.startswith(b"SQLite format 3\x00") or len(header) < 100:
        raise StoreError(f"{path} is not a store of medbn (no SQLite file); it was not touched.")
    version, application = (int.from_bytes(header[at : at + 4], "big") for at in (60, 68))
    if application != APPLICATION:
        raise StoreError(f"{path} is an SQLite file of another program; it was not touched.")
    if version != FORMAT:
        raise StoreError(f"{path} has format {version}, and this version of medbn reads {FORMAT}; it was not touched.")
