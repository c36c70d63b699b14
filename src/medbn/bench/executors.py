"""Where cells are run: in this process, or in several. Anything with the same ``run`` plugs in here."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, Protocol

from .cell import Cell
from .runner import Event, Place, Report, deterministic, execute
from .store import Store

Work = Sequence[tuple[Cell, "int | None"]]
"""Cells, and up to which batch each is to be run; None for all of its stream."""


class Executor(Protocol):
    """Runs cells and reports what happens; the store is a path, since work may happen elsewhere."""

    def run(self, work: Work, store: Path, report: Report) -> None:
        """Run all cells to their end. An error in one is raised; what is finished by then is in the store."""


class InProcess:
    """One cell after the other, here."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def run(self, work: Work, store: Path, report: Report) -> None:
        """Run all cells."""
        with deterministic(self.place), Store(store) as opened:
            for cell, batches in work:
                execute(cell, opened, self.place, batches, report)


class Processes:
    """Several processes of this machine, each with its share of the cores.

    Cells that share a crafted batch, because they differ in the method alone, go to one process together.
    """

    def __init__(self, place: Place, jobs: int) -> None:
        if jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {jobs}.")
        self.jobs = jobs
        self.place = replace(place, threads=place.threads or max(1, (os.cpu_count() or 1) // jobs))

    def run(self, work: Work, store: Path, report: Report) -> None:
        """Run all cells; stops all processes when interrupted."""
        context = get_context("spawn")  # torch's threads and CUDA do not survive a fork
        tasks, events = context.Queue(), context.Queue()
        for group in groups(work):
            tasks.put([(cell.describe(), batches) for cell, batches in group])
        for _ in range(self.jobs):
            tasks.put(None)
        arguments = (tasks, events, str(store), self.place)
        workers = [context.Process(target=_work, args=arguments, daemon=True) for _ in range(self.jobs)]
        with _deaf():
            for worker in workers:
                worker.start()
        failed: list[str] = []
        try:
            running = len(workers)
            while running:
                try:
                    kind, value = events.get(timeout=1)
                except queue.Empty:
                    if all(not worker.is_alive() for worker in workers) and events.empty():
                        raise RuntimeError("the processes ended before their work was done.") from None
                    continue
                if kind == "event":
                    report(value)
                elif kind == "error":
                    failed.append(value)
                else:
                    running -= 1
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.join()
            for channel in (tasks, events):
                channel.cancel_join_thread()
                channel.close()
        if failed:
            raise ValueError(failed[0])


def groups(work: Work) -> list[list[tuple[Cell, int | None]]]:
    """Neighbours that are attacked and differ in method and options alone, together; all others by themselves."""
    found: list[list[tuple[Cell, int | None]]] = []
    for cell, batches in work:
        last = found[-1][0][0] if found else None
        alike = last is not None and cell.attack is not None
        if last is not None and alike and replace(cell, method=last.method, options=last.options) == last:
            found[-1].append((cell, batches))
        else:
            found.append([(cell, batches)])
    return found


@contextmanager
def _deaf() -> Iterator[None]:
    """Ignore Ctrl-C for a moment: a process that is started meanwhile ignores it from its first instruction on."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say so
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _work(tasks: Any, events: Any, store: str, place: Place) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is asked to stop, and stops us
    parent = parent_process()

    def report(event: Event) -> None:
        if parent is not None and not parent.is_alive():
            os._exit(1)  # nobody is waiting; what is finished is in the store
        events.put(("event", event))

    with deterministic(place), Store(store) as opened:
        for group in iter(tasks.get, None):
            for described, batches in group:
                cell = Cell.of(described)
                try:
                    execute(cell, opened, place, batches, report)
                except Exception as error:  # the other cells go on; the parent raises it at the end
                    events.put(("error", f"{cell.label}: {error}"))
    events.put(("end", None))
    events.close()
    events.join_thread()
