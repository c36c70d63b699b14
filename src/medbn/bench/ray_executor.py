"""Run cells on a Ray cluster: one task per group of cells that share poison.

A task (``ray_worker.py``) sends the rows that it adds to the process that started it, which alone writes to the store
of the run. A task whose worker dies is started again from the rows that arrived. A batch may so be run twice, which
changes nothing: it has the same numbers.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .._errors import one_line
from . import user_modules
from .cell import Cell
from .cell_rows import add_rows, read_rows
from .events import Event, OnEvent
from .executors import Work, group_by_poison
from .loading import load_cell
from .place import Place, machine_facts
from .ray_worker import Message, run_group
from .store import LostClaimError, Store

CONNECT_WITHIN = 10.0
"""Seconds to wait for the port of a cluster."""
IN_FLIGHT = 256
"""Tasks that are given to Ray at a time; enough for its autoscaler to see that there is work."""
DEATHS = 3
"""How often a worker may die during a group of cells without a new batch in between."""
RENEW_AFTER = 300.0
"""Seconds after which the claims on waiting cells are extended."""
OBJECT_STORE = 128 * 2**20
"""Bytes of shared memory of a cluster on this machine; rows are small."""


@dataclass
class Group:
    """Cells that run in one task, each with its key and its number of batches."""

    cells: list[tuple[Cell, int | None, str]]
    deaths: int = 0


class Ray:
    """Runs cells on a Ray cluster.

    Args:
        place: the data folder, and the device and threads of each task; one thread by default. The folder, weights and
            modules of the user's own must be at the same paths on every machine.
        address: of a cluster, such as ``"auto"`` or ``"ray://HOST:10001"``; None for ``$RAY_ADDRESS``, or a cluster on
            this machine alone that ends with the run.
        jobs: how many tasks run at once; None for as many as the cluster has room for.
        gpus: the part of a GPU that a task needs, such as 0.25; by default 1 on CUDA devices and 0 otherwise.
    """

    def __init__(
        self, place: Place, *, address: str | None = None, jobs: int | None = None, gpus: float | None = None
    ) -> None:
        if jobs is not None and jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {jobs}.")
        on_gpu = place.device.startswith("cuda")
        if gpus is not None and (gpus < 0 or (gpus > 0) != on_gpu or (gpus > 1 and gpus != int(gpus))):
            raise ValueError(f"a task on {place.device} cannot have {gpus:g} GPUs: give a part of one, such as 0.25.")
        self.place = replace(place, threads=place.threads or 1, device="cuda" if on_gpu else place.device)
        self.gpus = (1.0 if on_gpu else 0.0) if gpus is None else gpus
        self.address = address or os.environ.get("RAY_ADDRESS") or "local"
        self.jobs = jobs

    def run(self, work: Work, store: Path, on_event: OnEvent) -> None:
        """Run all cells; an interrupt stops all tasks."""
        if not work:
            return
        ray = import_ray(self.address)
        with self._connect(ray), Store(store) as opened:
            self._check_room(ray)
            task = ray.remote(run_group).options(
                num_returns="streaming", num_cpus=self.place.threads, num_gpus=self.gpus, max_retries=0
            )
            _Driver(ray, task, self.place, opened, on_event, self.jobs or IN_FLIGHT).run(work)

    @contextmanager
    def _connect(self, ray: Any) -> Iterator[None]:
        """Connect to the cluster for a while, or start one; a connection that the user has made is used and kept."""
        if ray.is_initialized():
            yield
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        logging.getLogger("ray").setLevel(logging.ERROR)
        check_reachable(self.address)
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self.address == "local":
            threads = self.place.threads or 1
            jobs = self.jobs or max(1, (os.cpu_count() or 1) // threads)
            options |= {"num_cpus": jobs * threads, "include_dashboard": False, "object_store_memory": OBJECT_STORE}
        try:
            ray.init(address=self.address, **options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ValueError(
                f"no connection to a Ray cluster at {self.address!r} ({one_line(error, 200)}); `ray start --head`"
                " starts one, and without --address a run uses this machine."
            ) from error
        try:
            yield
        finally:
            ray.shutdown()

    def _check_room(self, ray: Any) -> None:
        """Raise a ValueError if no machine of the cluster can ever run a task."""
        needed = {"CPU": float(self.place.threads or 1), "GPU": self.gpus}
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(all(node.get(name, 0.0) >= amount for name, amount in needed.items()) for node in nodes):
            most = ", ".join(f"{max((n.get(name, 0.0) for n in nodes), default=0.0):g} {name}s" for name in needed)
            raise ValueError(
                f"a task needs {needed['CPU']:g} CPUs and {needed['GPU']:g} GPUs, and the machines of the cluster have"
                f" at most {most}; change --threads, --device or --gpus-per-task."
            )


class _Driver:
    """Gives groups of cells to Ray, and puts what they send into the store."""

    def __init__(self, ray: Any, task: Any, place: Place, store: Store, on_event: OnEvent, limit: int) -> None:
        self.ray, self.task, self.place, self.store, self.on_event = ray, task, place, store, on_event
        self.limit = limit
        self.running: dict[Any, Group] = {}
        self.errors: list[str] = []
        self.lost_claims: list[str] = []
        self.claimed: set[str] = set()

    def run(self, work: Work) -> None:
        waiting = deque(group_by_poison(work))
        renewed = time.monotonic()
        try:
            while waiting or self.running:
                while waiting and len(self.running) < self.limit:
                    self._start(self._claim(waiting.popleft()))
                if self.running:
                    ready, _ = self.ray.wait(list(self.running), timeout=1.0, fetch_local=False)
                    for stream in ready:
                        self._receive(stream)
                if time.monotonic() - renewed > RENEW_AFTER:
                    self.store.renew_claims()
                    renewed = time.monotonic()
        finally:
            for stream in self.running:
                with suppress(Exception):
                    self.ray.cancel(stream, force=True)
            for key in list(self.claimed):
                self._release(key)
        if self.errors:
            raise ValueError(self.errors[0])
        if self.lost_claims:
            raise LostClaimError(
                f"another process has taken {self.lost_claims[0]} over, because the claim of this one had expired."
            )

    def _claim(self, work: Sequence[tuple[Cell, int | None]]) -> Group:
        """Return the cells that no other process works on."""
        cells = []
        local = replace(self.place, device="cpu")
        for cell, batches in work:
            loaded = load_cell(cell, local, batches)
            self.claimed.add(loaded.key)  # before the claim: an interrupt may come right after it
            if self.store.claim(loaded.key, cell.to_dict(), machine_facts(local)):
                cells.append((cell, batches, loaded.key))
            else:
                self.claimed.discard(loaded.key)
                done, _ = self.store.progress(loaded.key)
                self.on_event(Event("busy", loaded.key, cell, done, loaded.batches))
        return Group(cells)

    def _release(self, key: str) -> None:
        self.store.release(key)
        self.claimed.discard(key)

    def _start(self, group: Group) -> None:
        """Start a task for a group, from the rows that the store has of its cells."""
        if not group.cells:
            return
        rows = [read_rows(self.store, key) for _, _, key in group.cells]
        cells = [(cell.to_dict(), batches, key) for cell, batches, key in group.cells]
        self.running[self.task.remote(cells, rows, self.place, user_modules.list_modules())] = group

    def _receive(self, stream: Any) -> None:
        """Take one message of a task, or its end."""
        group = self.running[stream]
        try:
            message: Message = self.ray.get(next(stream))
        except StopIteration:
            self._end(stream)
        except self.ray.exceptions.RayTaskError as error:  # not of a cell: the task itself failed
            self._end(stream)
            self.errors.append(f"{group.cells[0][0].label}: {_last_line(error)}")
        except self.ray.exceptions.RayError as error:  # the worker or its machine has died
            del self.running[stream]
            group.deaths += 1
            if group.deaths < DEATHS:
                self._start(group)
                return
            self.running[stream] = group
            self._end(stream)
            self.errors.append(
                f"{group.cells[0][0].label}: the worker has died {DEATHS} times without a new batch"
                f" ({type(error).__name__}); if the machine has too little memory, run fewer tasks at once with --jobs."
            )
        else:
            self._store(message, group)

    def _store(self, message: Message, group: Group) -> None:
        """Store the rows of a message, then report its events."""
        if message.error:
            self.errors.append(message.error)
        if message.rows is not None:
            with self.store.transaction():
                if self.store.is_claimed(message.rows.key):
                    self.lost_claims.append(message.rows.label)
                    return
                if add_rows(self.store, message.rows):
                    group.deaths = 0
        for event in message.events:
            self.on_event(event)

    def _end(self, stream: Any) -> None:
        for _, _, key in self.running.pop(stream).cells:
            self._release(key)


def check_reachable(address: str) -> None:
    """Raise a ValueError if nothing listens at an address with a host and a port: Ray would try for ten minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_WITHIN).close()
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"nothing listens at {address!r} ({one_line(error)}); `ray start --head` starts a cluster and prints its"
            " address, and without --address a run uses this machine."
        ) from error


def import_ray(address: str = "local") -> Any:
    """Return the module ``ray``, or raise an ImportError that says how to install it."""
    if address == "local":
        # Ray's name for it: a cluster of one machine, which listens on the loopback interface alone.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ImportError:
        raise ImportError("the Ray executor needs ray: pip install 'medbn[ray]'.") from None
    return ray


def _last_line(error: BaseException) -> str:
    """Return the last line of an error of a task, which has the traceback of the worker above it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
