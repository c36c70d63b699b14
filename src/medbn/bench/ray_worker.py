"""The tasks of the Ray executor, which run on any machine of the cluster.

A task has a store of its own, in a temporary folder, and sends the rows that it adds.
"""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import user_modules
from .cell import Cell
from .cell_rows import CellRows, add_rows, read_rows
from .cell_stream import run_batches
from .events import Event
from .place import Place, deterministic
from .store import Store

SEND_AFTER = 2.0
"""Seconds after which a task sends its rows; a worker that is killed loses less than this and the batch in progress."""


@dataclass(frozen=True)
class Message:
    """What a task sends: new rows of a cell, what happened to it, and its error if there is one."""

    rows: CellRows | None = None
    events: list[Event] = field(default_factory=list)
    error: str = ""


def run_group(
    cells: Sequence[tuple[dict[str, Any], int | None, str]],
    rows: Sequence[CellRows],
    place: Place,
    modules: user_modules.UserModules,
) -> Iterator[Message]:
    """Run a group of cells in a store of its own, and yield what it adds: the task of a worker."""
    user_modules.use(modules)
    with (
        tempfile.TemporaryDirectory(prefix="medbn-") as folder,
        deterministic(place),
        Store(Path(folder) / "worker.db") as store,
    ):
        with store.transaction():
            for one in rows:
                add_rows(store, one)
        for values, batches, key in cells:
            yield from _run_one(Cell.from_dict(values), batches, key, store, place)


def _run_one(cell: Cell, batches: int | None, key: str, store: Store, place: Place) -> Iterator[Message]:
    """Run one cell, and yield its rows every few seconds; its error is a message, so that other cells continue."""
    sent, _ = store.progress(key)
    events: list[Event] = []
    last, error = time.monotonic(), ""
    stream = run_batches(cell, store, place, batches)
    try:
        for event in stream:
            if event.key != key:
                raise ValueError(
                    f"the data, the weights or the code on {socket.gethostname()} are not those of the machine that"
                    " started the run."
                )
            events.append(event)
            if time.monotonic() - last > SEND_AFTER:
                new = read_rows(store, key, sent)
                yield Message(new, events)
                sent, events, last = new.end, [], time.monotonic()
    except Exception as raised:
        error = f"{cell.label}: {raised}"
    finally:
        stream.close()
    started = events or error
    if started:
        done, _ = store.progress(key)
        yield Message(read_rows(store, key, sent) if done > sent else None, events, error)
