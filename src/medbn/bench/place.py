"""Where a run happens: its data folder, device and threads, and the facts that are stored about the machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from .._environment import device_name, versions
from .._version import __version__


@dataclass(frozen=True)
class Place:
    """Where a run happens.

    Args:
        root: the data folder; None for the default of ``medbn.data``.
        device: the device of models and images, such as ``"cpu"`` or ``"cuda"``.
        threads: how many threads torch uses in each process; None leaves the number as it is.
    """

    root: str | None = None
    device: str = "cpu"
    threads: int | None = None


def machine_facts(place: Place) -> dict[str, Any]:
    """Return the device, the number of threads and the versions that are stored with every cell and run."""
    return {"device": device_name(place.device), "medbn": __version__, **versions()}


@contextmanager
def deterministic(place: Place) -> Iterator[None]:
    """Set torch so that the same cell gives the same bits on the same machine; restore its settings at the end.

    An operation without a deterministic form warns, and its results may then differ in the last bits. cuDNN does not
    benchmark its algorithms: which deterministic algorithm is fastest varies from run to run, and a stream that is
    continued would then change its bits. Uninitialised memory is not filled with NaN, which torch does by default in
    this mode: nothing reads that memory, and filling it costs one more write of every activation.
    """
    mode = torch.get_deterministic_debug_mode()
    cudnn_deterministic, cudnn_benchmark = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    threads = torch.get_num_threads()
    memory: Any = torch.utils.deterministic
    fill = memory.fill_uninitialized_memory
    memory.fill_uninitialized_memory = False
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # The same as use_deterministic_algorithms(True, warn_only=True), which also imports torch's compiler: one second.
    torch.set_deterministic_debug_mode("warn")
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    if place.threads:
        torch.set_num_threads(place.threads)
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn_deterministic, cudnn_benchmark
        torch.set_num_threads(threads)
        memory.fill_uninitialized_memory = fill
