"""The store: batches are stored whole or not at all, a cell has one worker, other programs' files stay untouched."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys

import pytest

from medbn.bench import LostClaimError, Store, StoreError
from medbn.bench.store import LEASE, start_time

CELL, FACTS = {"a": 1}, {"device": "x"}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results.db"


def on_another_host(store: Store, host: str = "another", pid: int = 1, born: str = "7") -> Store:
    store.owner = (host, pid, born)
    return store


def test_a_batch_and_its_state_are_kept_together(path):
    with Store(path) as store:
        assert store.progress("k") == (0, None)
        assert store.claim("k", CELL, FACTS)
        store.commit("k", 0, {"wrong": 3}, b"one", [(b"clean", b"poisoned")])
        store.commit("k", 1, {"wrong": 4}, b"two")
        store.release("k")
    with Store(path) as store:
        assert store.progress("k") == (2, b"two")
        (stored,) = store.cells()
        assert (stored.cell, stored.facts, stored.batches) == (CELL, FACTS, [{"wrong": 3}, {"wrong": 4}])
        assert store.examples("k") == [(b"clean", b"poisoned")]


def test_nothing_of_a_batch_is_kept_when_a_part_fails(path):
    with Store(path) as store:
        store.claim("k", CELL, FACTS)
        store.commit("k", 0, {"wrong": 3}, b"one")
        with pytest.raises(sqlite3.IntegrityError):
            store.commit("k", 0, {"wrong": 9}, b"two")  # that number is there already
        assert store.progress("k") == (1, b"one")


def test_a_cell_has_one_worker(path):
    clock = Clock()
    with Store(path, clock=clock) as here, Store(path, clock=clock) as there:
        on_another_host(there)
        assert here.claim("k", CELL, FACTS)
        assert not there.claim("k", CELL, FACTS)
        here.release("k")
        assert there.claim("k", CELL, FACTS)
        assert not here.claim("k", CELL, FACTS)
        with pytest.raises(LostClaimError, match="claim"):
            here.commit("k", 0, {}, b"")
        here.release("k")  # has no effect: the claim is another's
        there.commit("k", 0, {}, b"")


def test_a_claim_from_another_host_ends_with_its_lease(path):
    clock = Clock()
    with Store(path, clock=clock) as here, on_another_host(Store(path, clock=clock)) as there:
        assert there.claim("k", CELL, FACTS)
        clock.now += LEASE - 1
        assert not here.claim("k", CELL, FACTS)
        there.commit("k", 0, {}, b"")  # a sign of life
        clock.now += LEASE - 1
        assert not here.claim("k", CELL, FACTS)
        clock.now += 2
        assert here.claim("k", CELL, FACTS)
        with pytest.raises(LostClaimError):
            there.commit("k", 1, {}, b"")
        assert here.progress("k") == (1, b"")


def test_slow_batches_have_longer_leases(path):
    clock = Clock()
    with Store(path, clock=clock) as here, on_another_host(Store(path, clock=clock)) as there:
        there.claim("k", CELL, FACTS)
        there.commit("k", 0, {}, b"", seconds=600)
        clock.now += 5000
        assert not here.claim("k", CELL, FACTS)


def test_a_claim_dies_with_its_process(path):
    with Store(path) as store:
        host = store.owner[0]
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    born = start_time(child.pid)
    assert born
    with Store(path) as here, on_another_host(Store(path), host, child.pid, born) as there:
        assert there.claim("k", CELL, FACTS)
        assert not here.claim("k", CELL, FACTS)
        child.kill()
        child.wait()
        child.stdin.close()
        assert start_time(child.pid) is None
        assert here.claim("k", CELL, FACTS)


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="start times come from /proc")
def test_a_claim_ends_if_another_process_has_the_same_number(path):
    with Store(path) as store:
        host = store.owner[0]
    with Store(path) as here, on_another_host(Store(path), host, os.getppid(), "1") as there:
        assert there.claim("k", CELL, FACTS)
        assert here.claim("k", CELL, FACTS)


def test_runs_are_recorded(path):
    with Store(path) as store:
        first = store.begin_run({"name": "a"}, "medbn run a", FACTS, ["k", "l", "k"])
        store.begin_run({"name": "b"}, "medbn run b", FACTS, [])
        store.end_run(first)
        one, two = store.runs()
        assert (one.recipe, one.command, one.keys) == ({"name": "a"}, "medbn run a", ("k", "l"))
        assert one.ended is not None
        assert two.ended is None


@pytest.mark.parametrize(
    "content", [b"some text, certainly", b"SQLite format 3\x00" + b"\xff" * 4096, b"\x00" * 100, b"S"]
)
def test_foreign_and_damaged_files_are_not_touched(path, content):
    path.write_bytes(content)
    with pytest.raises(StoreError, match="not touched"):
        Store(path)
    assert path.read_bytes() == content


def test_a_half_written_batch_of_a_killed_process_is_rolled_back(path):
    with Store(path) as store:
        store.claim("k", CELL, FACTS)
        store.commit("k", 0, {"wrong": 1}, b"x" * 100_000)
    before = path.read_bytes()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA cache_size = 1")  # makes SQLite write to the file before the commit
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE cells SET state = ?", (b"y" * 400_000,))
    journal = path.with_name(path.name + "-journal").read_bytes()
    torn = path.read_bytes()
    connection.execute("ROLLBACK")
    connection.close()
    assert torn != before
    path.write_bytes(torn)
    path.with_name(path.name + "-journal").write_bytes(journal)
    with Store(path) as store:
        assert store.progress("k") == (1, b"x" * 100_000)


def test_a_full_disk_says_so_and_keeps_what_was_finished(path):
    with Store(path) as store:
        store.claim("k", CELL, FACTS)
        store.commit("k", 0, {"wrong": 1}, b"small")
        pages = store.connection.execute("PRAGMA page_count").fetchone()[0]
        store.connection.execute(f"PRAGMA max_page_count = {pages + 2}")
        with pytest.raises(StoreError, match=r"cannot write to .*full"):
            store.commit("k", 1, {"wrong": 2}, b"x" * 1_000_000)
        assert store.progress("k") == (1, b"small")


def test_reading_does_not_turn_an_empty_file_into_a_store(path):
    path.touch()
    with pytest.raises(StoreError, match="no store"):
        Store(path, create=False)
    assert path.read_bytes() == b""


def test_databases_of_other_programs_are_not_touched(path):
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="of another program"):
        Store(path)
    assert path.read_bytes() == before


def test_a_damaged_store_is_refused(path):
    with Store(path) as store:
        for key in map(str, range(50)):
            store.claim(key, {"x": "y" * 500}, FACTS)
    content = bytearray(path.read_bytes())
    content[4096:12288] = b"\xaa" * 8192
    path.write_bytes(content)
    with pytest.raises(StoreError, match="damaged"):
        Store(path)
    assert path.read_bytes() == bytes(content)


def test_other_formats_are_refused(path):
    Store(path).close()
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 99")
    other.close()
    with pytest.raises(StoreError, match="format 99"):
        Store(path)


def test_places_that_cannot_be_written(tmp_path):
    with pytest.raises(StoreError, match="is a folder"):
        Store(tmp_path)
    with pytest.raises(StoreError, match="cannot write"):
        Store(tmp_path / "no such folder" / "x.db")
    with pytest.raises(StoreError, match="no store"):
        Store(tmp_path / "x.db", create=False)
    assert not (tmp_path / "x.db").exists()


def test_an_empty_file_becomes_a_store(path):
    path.touch()
    with Store(path) as store:
        assert store.cells() == []
