"""A few processes that stay alive over a test session and run functions together, as ranks of gloo groups."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

PATIENCE = 600
"""Seconds after which a process that does not return is given up; no test waits for it unless something is broken."""


def serve(rank: int, size: int, store: str, connection: Any) -> None:
    """Run what comes through the connection, until it is closed."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    groups = {count: dist.new_group(list(range(count))) for count in range(1, size + 1)}
    while True:
        try:
            function, count, arguments = connection.recv()
        except EOFError:
            return
        except Exception:
            connection.send((False, traceback.format_exc()))
            continue
        try:
            torch.manual_seed(0)
            connection.send((True, function(groups[count], *arguments)))
        except BaseException:
            connection.send((False, traceback.format_exc()))


def start(target: Callable[..., None], *arguments: Any) -> tuple[Any, Any]:
    """Start a process that has imported medbn already; return it and a connection to it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "medbn"])
    own, other = context.Pipe()
    process = context.Process(target=target, args=(*arguments, other), daemon=True)
    process.start()
    other.close()
    return process, own


class Pool:
    """Processes that run a function of this package together; started at first use, and again after a failure.

    Args:
        size: how many processes there are.
        folder: where they find each other.
    """

    def __init__(self, size: int, folder: Path) -> None:
        self.size, self.folder, self.starts = size, folder, 0
        self.processes: list[Any] = []
        self.connections: list[Any] = []

    def run(self, function: Callable[..., Any], count: int, *arguments: Any) -> list[Any]:
        """Return what ``function(group, *arguments)`` returns in each of the first ``count`` processes."""
        if not self.processes:
            self._start()
        ranks = {connection: rank for rank, connection in enumerate(self.connections[:count])}
        for connection in ranks:
            connection.send((function, count, arguments))
        answers: dict[int, Any] = {}
        while len(answers) < count:
            ready = wait([c for c, rank in ranks.items() if rank not in answers], PATIENCE)
            received = {ranks[c]: c.recv() for c in ready}
            failures = [f"process {rank}:\n{answer}" for rank, (right, answer) in received.items() if not right]
            if failures or not received:
                self.close()  # the others may wait for one that has failed
                raise AssertionError("\n".join(failures) or "the processes do not answer")
            answers |= {rank: answer for rank, (_, answer) in received.items()}
        return [answers[rank] for rank in range(count)]

    def close(self) -> None:
        """End the processes."""
        for connection in self.connections:
            connection.close()
        for process in self.processes:
            process.kill()
            process.join()
        self.processes, self.connections = [], []

    def _start(self) -> None:
        self.starts += 1
        store = str(self.folder / f"store{self.starts}")
        started = [start(serve, rank, self.size, store) for rank in range(self.size)]
        self.processes, self.connections = (list(part) for part in zip(*started, strict=True))
