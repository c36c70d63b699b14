"""Where cells run, and in which order. Any object with the same ``run`` method works as an executor."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, Protocol

import torch

from . import user_modules
from .cell import Cell
from .cell_stream import run_batches, run_cell
from .events import Event, OnEvent
from .place import Place, deterministic
from .store import LostClaimError, Store

Work = Sequence[tuple[Cell, "int | None"]]
"""Cells, each with the number of batches to run; None for all of its stream."""


class Executor(Protocol):
    """Runs cells and reports events; the store is a path, because cells may run in other processes."""

    def run(self, work: Work, store: Path, on_event: OnEvent) -> None:
        """Run all cells to their end. If one raises, its error is raised; what is finished by then is stored."""


class InProcess:
    """Runs cells in this process, one after the other."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def run(self, work: Work, store: Path, on_event: OnEvent) -> None:
        """Run all cells."""
        with deterministic(self.place), Store(store) as opened:
            for cell, batches in work:
                run_cell(cell, opened, self.place, batches, on_event)


class InTurns:
    """Runs cells in this process in turns, a batch of each at a time.

    When time is over, all of them have as many batches. The models and captured graphs of all cells are in memory.
    """

    def __init__(self, place: Place) -> None:
        self.place = place

    def run(self, work: Work, store: Path, on_event: OnEvent) -> None:
        """Run all cells; if one raises, the others go on, and its error is raised at the end."""
        errors: list[Exception] = []
        with deterministic(self.place), Store(store) as opened, ExitStack() as stack:
            turns = deque(
                (cell, stack.enter_context(closing(run_batches(cell, opened, self.place, batches))))
                for cell, batches in work
            )
            while turns:
                cell, events = turns.popleft()
                event = self._next_batch(cell, events, on_event, errors)
                if event is not None and event.kind == "batch":
                    turns.append((cell, events))
        if errors:
            raise errors[0]

    @staticmethod
    def _next_batch(cell: Cell, events: Iterator[Event], on_event: OnEvent, errors: list[Exception]) -> Event | None:
        """Run a cell until its next batch or its end; return its last event, None if it raised."""
        while True:
            try:
                event = next(events, None)
            except LostClaimError as error:  # another process continues the cell
                errors.append(error)
                return None
            except Exception as error:
                errors.append(ValueError(f"{cell.label}: {error}"))
                return None
            if event is None:
                return None
            on_event(event)
            if event.kind == "batch":
                return event


class Processes:
    """Runs cells in several processes of this machine, which divide this process's torch threads among them.

    Cells that differ in the method alone run in one process, where they can share a poisoned batch.
    """

    def __init__(self, place: Place, jobs: int) -> None:
        if jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {jobs}.")
        self.jobs = jobs
        self.place = replace(place, threads=place.threads or max(1, torch.get_num_threads() // jobs))

    def run(self, work: Work, store: Path, on_event: OnEvent) -> None:
        """Run all cells; an interrupt stops all processes."""
        context = get_context("spawn")  # torch's threads and CUDA do not survive a fork
        tasks, messages = context.Queue(), context.Queue()
        for group in group_by_poison(work):
            tasks.put([(cell.to_dict(), batches) for cell, batches in group])
        for _ in range(self.jobs):
            tasks.put(None)
        arguments = (tasks, messages, str(store), self.place, user_modules.list_modules())
        workers = [context.Process(target=_work, args=arguments, daemon=True) for _ in range(self.jobs)]
        with _ignore_interrupts():
            for worker in workers:
                worker.start()
        errors: list[str] = []
        lost_claims: list[str] = []
        try:
            running = len(workers)
            while running:
                try:
                    kind, value = messages.get(timeout=1)
                except queue.Empty:
                    if all(not worker.is_alive() for worker in workers) and messages.empty():
                        raise RuntimeError("the processes ended before their work was done.") from None
                    continue
                if kind == "event":
                    on_event(value)
                elif kind == "error":
                    errors.append(value)
                elif kind == "lost claim":
                    lost_claims.append(value)
                else:
                    running -= 1
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.join()
            for channel in (tasks, messages):
                channel.cancel_join_thread()
                channel.close()
        if errors:
            raise ValueError(errors[0])
        if lost_claims:
            raise LostClaimError(lost_claims[0])


def group_by_poison(work: Work) -> list[list[tuple[Cell, int | None]]]:
    """Group neighbouring attacked cells that differ in method and options alone; every other cell is a group."""
    groups: list[list[tuple[Cell, int | None]]] = []
    for cell, batches in work:
        last = groups[-1][0][0] if groups and cell.attack is not None else None
        if last is not None and replace(cell, method=last.method, options=last.options) == last:
            groups[-1].append((cell, batches))
        else:
            groups.append([(cell, batches)])
    return groups


@contextmanager
def _ignore_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C: a process that is started meanwhile inherits this, from its first instruction on."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set signal handlers
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _work(tasks: Any, messages: Any, store: str, place: Place, modules: user_modules.UserModules) -> None:
    """Run groups of cells until there are none left: the main function of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which terminates its workers
    user_modules.use(modules)
    parent = parent_process()

    def on_event(event: Event) -> None:
        if parent is not None and not parent.is_alive():
            os._exit(1)  # the parent was killed; what is finished is stored
        messages.put(("event", event))

    with deterministic(place), Store(store) as opened:
        for group in iter(tasks.get, None):
            for cell_dict, batches in group:
                cell = Cell.from_dict(cell_dict)
                try:
                    run_cell(cell, opened, place, batches, on_event)
                except LostClaimError as error:  # another process continues the cell
                    messages.put(("lost claim", str(error)))
                except Exception as error:  # the other cells continue; the parent raises it at the end
                    messages.put(("error", f"{cell.label}: {error}"))
    messages.put(("end", None))
    messages.close()
    messages.join_thread()
