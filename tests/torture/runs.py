"""Runs of the bench: killed at any moment, shared by processes, and stores that were damaged."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import random
import signal
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from medbn import bench
from medbn.cli import main

from ..bench.stored import stored_metrics
from .alter import alter_bytes
from .trials import attempt, kind, require

PLACE = bench.Place(threads=1)


def _recipe(scenario: str, methods: tuple[str, ...]) -> bench.Recipe:
    return bench.Recipe(
        name="torture",
        about="for trials",
        settings=(replace(bench.DIGITS, batch_size=16, malicious=4),),
        methods=methods,
        estimators=("median",),
        attacks=(bench.Attack("indiscriminate", steps=2, step_size=0.1),),
        corruptions=("contrast",),
        scenario=scenario,
        batches=3,
    )


RECIPES = {
    (scenario, group): _recipe(scenario, group)
    for scenario in ("instant", "cumulative")
    for group in (("tent", "sotta"), ("eata", "past"), ("sar", "sema"))
}


def _fork(action: Callable[[], object]) -> int:
    """Run an action in a child process and return its number; torch has one thread, which survives a fork."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    try:
        action()
        os._exit(0)
    except BaseException as error:
        print(f"child: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def _run(recipe: bench.Recipe, store: Path, kill_after: float = 0.0) -> Callable[[], None]:
    """Return the action of a child that runs a recipe, and is killed after so many seconds of its CPU time."""

    def action() -> None:
        if kill_after:
            # The default action of SIGPROF ends the process at once, wherever it is: Python sees nothing of it.
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_PROF, kill_after)
        bench.run(recipe, store, place=PLACE)

    return action


def _wait(child: int) -> tuple[int, float]:
    """Return the signal that ended a child, 0 if it ended well, and the CPU seconds that it took."""
    _, status, usage = os.wait4(child, 0)
    require(os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "a run failed")
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, usage.ru_utime + usage.ru_stime


@functools.cache
def _undisturbed(which: tuple[str, tuple[str, ...]]) -> tuple[dict[str, Any], float]:
    """Return the metrics of an undisturbed run, and the CPU seconds that it took."""
    with tempfile.TemporaryDirectory() as folder:
        _, seconds = _wait(_fork(_run(RECIPES[which], Path(folder) / "x.db")))
        return stored_metrics(Path(folder) / "x.db"), seconds


def _count(metrics: dict[str, Any]) -> int:
    return sum(map(len, metrics.values()))


def _require_prefix(stored: dict[str, Any], expected: dict[str, Any]) -> None:
    for key, batches in stored.items():
        require(batches == expected[key][: len(batches)], "a stored batch has other numbers")


@kind("kills", 40)
def kill_a_run(rng: random.Random, folder: Path) -> Counter[str]:
    """A run that is killed at any moment, again and again, loses no stored batch and ends with the same bits."""
    which = rng.choice(list(RECIPES))
    expected, seconds = _undisturbed(which)
    store, outcomes, finished = folder / "x.db", Counter[str](), 0
    for _ in range(5):
        killed, _ = _wait(_fork(_run(RECIPES[which], store, max(1e-3, seconds * rng.uniform(0, 0.7)))))
        if not killed:
            break
        outcomes["kills"] += 1
        if store.exists() and store.stat().st_size:
            stored = stored_metrics(store)
            _require_prefix(stored, expected)
            require(_count(stored) >= finished, "a stored batch was lost")
            finished = _count(stored)
    _wait(_fork(_run(RECIPES[which], store)))
    require(stored_metrics(store) == expected, "other numbers than without kills")
    outcomes["runs with the same bits"] += 1
    return outcomes


@kind("sharing", 15)
def share_a_store(rng: random.Random, folder: Path) -> Counter[str]:
    """Processes that run the same recipe into one store, some of them killed, leave the bits of one process."""
    which = rng.choice(list(RECIPES))
    expected, seconds = _undisturbed(which)
    store = folder / "x.db"
    limits = [0.0, 0.0, max(1e-3, seconds * rng.uniform(0, 0.7))]
    children = [_fork(_run(RECIPES[which], store, limit)) for limit in limits]
    kills = sum(_wait(child)[0] != 0 for child in children)
    _wait(_fork(_run(RECIPES[which], store)))  # runs what a killed process had claimed
    require(stored_metrics(store) == expected, "other numbers than of one process")
    return Counter({"processes": len(limits), "kills": kills, "stores with the same bits": 1})


@functools.cache
def _finished_store() -> bytes:
    """Return the file of a store in which a run has ended."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "x.db"
        bench.run(RECIPES["instant", ("tent", "sotta")], store, place=PLACE)
        return store.read_bytes()


def _content(path: Path) -> tuple[Any, ...]:
    """Return everything that a store shows: cells, batches, states, pictures and runs."""
    with bench.Store(path, create=False) as store:
        cells = store.cells()
        keys = sorted(cell.key for cell in cells)
        return cells, [store.progress(key) for key in keys], [store.examples(key) for key in keys], store.runs()


@functools.cache
def _expected_content() -> tuple[Any, ...]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.db"
        path.write_bytes(_finished_store())
        return _content(path)


def _report(path: Path) -> tuple[int, str, str]:
    """Return the exit code, the output and the errors of ``medbn report``."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = main(["report", str(path), "--format", "json", "--out", "-"])
    return code, output.getvalue(), errors.getvalue()


@functools.cache
def _expected_report() -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.db"
        path.write_bytes(_finished_store())
        return _report(path)[1]


@kind("stores", 1500)
def damage_a_store(rng: random.Random, folder: Path) -> str:
    """A damaged store is refused in one line, or shows exactly what was stored."""
    path = folder / "x.db"
    path.write_bytes(_finished_store())
    if rng.random() < 0.5:
        path.write_bytes(alter_bytes(rng, path.read_bytes()))
    else:
        _alter_row(rng, path)
    done, content = attempt(lambda: _content(path), bench.StoreError)
    if done:
        require(content == _expected_content(), "other results, without a word")
    if rng.random() < 0.1:
        code, printed, errors = _report(path)
        # A report does not read all that is in a store: it may be written although something else is damaged.
        require(code == 2 or (code == 0 and printed == _expected_report()), f"medbn report ended with {code}: {errors}")
        require(code == 0 or errors.count("\n") == 1, f"medbn report printed {errors[:200]!r}")
        require(code == 0 or not done, f"medbn report refused what can be read: {errors}")
    return "as stored" if done else "refused"


def _alter_row(rng: random.Random, path: Path) -> None:
    """Write something else into one column of a random row."""
    values = [None, -1, 0, 10**12, 1.5, "", "x", "{}", "[]", "null", '{"a": NaN}', b"", b"\x80\x04.", "9" * 30]
    with contextlib.closing(sqlite3.connect(path)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        table = rng.choice([name for name in tables if not name.startswith("sqlite_")])
        # The owner of a claim may be anything: it is not a result.
        columns = [name for (name,) in db.execute("SELECT name FROM pragma_table_info(?)", (table,))]
        column = rng.choice([name for name in columns if name not in ("host", "pid", "born", "until")])
        rows = db.execute(f"SELECT * FROM {table}").fetchall()
        if not rows:
            return
        row = rng.choice(rows)
        value = row[columns.index(column)]
        if isinstance(value, bytes | str) and value and rng.random() < 0.6:
            content = alter_bytes(rng, value if isinstance(value, bytes) else value.encode())
            new: object = content if isinstance(value, bytes) else content.decode(errors="replace")
        else:
            new = rng.choice(values)
        with contextlib.suppress(sqlite3.Error), db:  # the schema refuses some
            same_row = " AND ".join(f"{name} IS ?" for name in columns)
            db.execute(f"UPDATE {table} SET {column} = ? WHERE {same_row}", (new, *row))
