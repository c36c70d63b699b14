"""Where and when something was measured."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import warnings
from pathlib import Path
from typing import Any

import torch

from .. import kernels
from .settings import DTYPES, Settings
from .timing import FORCED


def describe(settings: Settings) -> dict[str, Any]:
    """The machine and the software, with what decides about speed."""
    x = torch.zeros(2, 2, 2, 2, device=settings.device, dtype=DTYPES[settings.dtype])
    found: dict[str, Any] = {
        "device": device_name(settings.device),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "load": [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else [],
        "paths": {name: kernels.selected(x, name) for name in settings.robust},
    }
    if os.environ.get(FORCED):
        found[FORCED] = os.environ[FORCED]
    if settings.on_gpu:
        found["cuda"] = torch.version.cuda
        found["triton"] = _version("triton")
        found["cudnn_benchmark"] = torch.backends.cudnn.benchmark
        with warnings.catch_warnings():  # newer torch has another name for it
            warnings.simplefilter("ignore")
            found["tf32_convolutions"] = torch.backends.cudnn.allow_tf32
    else:
        found["instructions"] = (kernels.c.instruction_sets() or ("none",))[-1]
    return found


def device_name(device: str) -> str:
    """What the device calls itself."""
    if torch.device(device).type == "cuda":
        return str(torch.cuda.get_device_name(device))
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
