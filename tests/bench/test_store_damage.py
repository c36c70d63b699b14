"""Damaged stores and stores of strangers: one line that says what is wrong, and never other numbers."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from dataclasses import replace

import pytest

from medbn import bench, report
from medbn.bench import Store, StoreError
from medbn.bench.store_format import CHECKED

VALUES = (None, "", "{", "{}", "[]", '{"name": 3, "images": "x"}', "\ud800".encode("utf-8", "surrogatepass"), -7, 1e300)
"""What takes the place of a stored value."""


RECIPE = bench.Recipe(
    name="tiny",
    settings=(replace(bench.DIGITS, batch_size=32, malicious=6),),
    methods=("tebn",),
    estimators=("mean", "median"),
    attacks=(bench.Attack("targeted", steps=1),),
    corruptions=("contrast",),
    batches=2,
)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A small store of format 2."""
    path = tmp_path_factory.mktemp("store") / "good.db"
    bench.run(RECIPE, path, command="medbn run tiny")
    return path


def to_format_1(path):
    """Take the checksums away."""
    with sqlite3.connect(path) as db:
        for table in CHECKED:
            db.execute(f"ALTER TABLE {table} DROP COLUMN checksum")
        db.execute("ALTER TABLE cells DROP COLUMN state_checksum")
        db.execute("PRAGMA user_version = 1")
    db.close()
    return path


def read(path):
    """Return everything that a report and a continued run read."""
    with Store(path, create=False) as store:
        cells = store.cells()
        texts = [report.FORMATS.get(name).write(report.build(store)) for name in ("json",)]
        return texts, cells, [store.progress(cell.key) for cell in cells], [store.examples(c.key) for c in cells]


def error_of(path):
    """Return the message of the error that reading a damaged store raises, or None."""
    try:
        read(path)
    except StoreError as error:
        return str(error)
    except ValueError as error:  # the run has lost its cells
        return str(error) if "no results" in str(error) else None
    return None


def one_line(error) -> bool:
    return "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("column", [(t, c) for t, columns in CHECKED.items() for c in columns] + [("cells", "state")])
def test_a_changed_value_is_reported_as_damage(good, tmp_path, column):
    """In format 2 every change; in format 1, which has no checksums, those that leave nothing to read."""
    table, name = column
    unnoticed = 0
    for number, value in enumerate(VALUES):
        for form in (1, 2):
            path = shutil.copy(good, tmp_path / f"{number}-{form}.db")
            if form == 1:
                to_format_1(path)
            db = sqlite3.connect(path, isolation_level=None)
            db.execute("PRAGMA ignore_check_constraints = ON")
            row = db.execute(f"SELECT min({CHECKED[table][0]}) FROM {table}").fetchone()
            try:
                db.execute(f"UPDATE {table} SET {name} = ? WHERE {CHECKED[table][0]} = ?", (value, *row))
            except sqlite3.IntegrityError:
                continue  # SQLite itself keeps this value out
            finally:
                db.close()
            if form == 2 and (table, name, value) not in ALLOWED:
                with pytest.raises(StoreError, match="damaged") as error:
                    read(path)
                assert one_line(error)
                continue
            message = error_of(path)
            assert message is None or ("\n" not in message)
            unnoticed += message is None
    assert unnoticed < len(VALUES) or name in ("key", "place", "ended", "began", "command", "facts", "clean")


ALLOWED = {("runs", "ended", None), ("cells", "state", None)}
"""Values that are stored in a good store as well."""


@pytest.mark.slow
def test_no_flipped_bit_changes_a_number(good, tmp_path):
    expected = read(good)
    content = good.read_bytes()
    random_ = random.Random(0)
    noticed = 0
    for _ in range(120):
        changed = bytearray(content)
        bit = random_.randrange(8 * len(content))
        changed[bit // 8] ^= 1 << bit % 8
        path = tmp_path / "flipped.db"
        path.write_bytes(changed)
        message = error_of(path)
        if message is None:
            assert read(path) == expected
        else:
            assert "\n" not in message
            noticed += 1
    assert noticed > 30


def test_a_damaged_state_is_not_continued(good, tmp_path):
    path = shutil.copy(good, tmp_path / "x.db")
    with sqlite3.connect(path) as db:
        key, state = db.execute("SELECT key, state FROM cells").fetchone()
        db.execute("UPDATE cells SET state = ? WHERE key = ?", (state[:500] + b"?" + state[501:], key))
    db.close()
    with Store(path) as store:
        assert len(store.cells()) == 2  # the finished batches can be read
        with pytest.raises(StoreError, match=r"state.*checksum"):
            store.progress(key)


def test_a_damaged_state_without_checksum_is_reported_when_it_is_loaded(good, tmp_path):
    path = to_format_1(shutil.copy(good, tmp_path / "x.db"))
    with sqlite3.connect(path) as db:
        db.execute("UPDATE cells SET state = x'00ff00'")
    db.close()
    with pytest.raises(StoreError, match=r"state.*cannot be read") as error:
        bench.run(replace(RECIPE, batches=3), path)
    assert one_line(error)


def test_format_1_is_read_without_being_written(good, tmp_path):
    path = to_format_1(shutil.copy(good, tmp_path / "x.db"))
    with open(path, "rb") as file:
        before = file.read()
    assert read(path)[1:] == read(good)[1:]
    with open(path, "rb") as file:
        assert file.read() == before


def test_a_store_of_format_1_gets_checksums_when_it_is_written(good, tmp_path):
    path = to_format_1(shutil.copy(good, tmp_path / "x.db"))
    with Store(path) as other, Store(path) as store:
        store.begin_run({"name": "b"}, "medbn run b", {}, [])
        assert store.has_checksums
        assert other.cells() == store.cells()
        assert [other.progress(c.key) for c in other.cells()] == read(good)[2]


@pytest.mark.parametrize("name", ["file:foreign.db", "file:foreign.db?mode=rwc", "file:///foreign.db"])
def test_a_path_is_never_a_uri(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = sqlite3.connect("foreign.db")
    other.execute("CREATE TABLE theirs (x)")
    other.close()
    before = (tmp_path / "foreign.db").read_bytes()
    try:
        with Store(name) as store:
            store.begin_run({}, "", {}, [])
        assert os.path.getsize(name) > 0
    except StoreError:
        pass  # there is no folder "file:"
    assert (tmp_path / "foreign.db").read_bytes() == before


def test_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match=":memory:"):
        Store(":memory:")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TRIGGER t AFTER UPDATE ON cells BEGIN DELETE FROM batches; END",
        "CREATE VIEW v AS SELECT 1",
        "DROP TABLE members",
        "ALTER TABLE batches ADD COLUMN more",
    ],
)
def test_a_store_with_other_tables_is_refused(good, tmp_path, sql):
    path = shutil.copy(good, tmp_path / "x.db")
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(sql)
    db.close()
    with pytest.raises(StoreError, match="damaged") as error:
        Store(path)
    assert one_line(error)


def test_functions_in_a_stored_schema_are_not_trusted(good):
    with Store(good) as store:
        assert store.connection.execute("PRAGMA trusted_schema").fetchone() == (0,)
