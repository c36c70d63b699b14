"""Facts about this machine and its software, which are stored with every measurement."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch


def device_name(device: str | torch.device) -> str:
    """Return the model of a GPU or of the processor, with the number of its cores."""
    if torch.device(device).type == "cuda":
        return str(torch.cuda.get_device_name(device))
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = named[0] if named else platform.processor() or platform.machine() or "CPU"
    return f"{name} ({os.cpu_count()} cores)"


def versions() -> dict[str, Any]:
    """Return the versions of Python, torch and numpy, the number of torch's threads and the operating system."""
    return {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def package_version(package: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
