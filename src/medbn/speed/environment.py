"""The machine and the software that a measurement was made with."""

from __future__ import annotations

import os
import platform
import warnings
from typing import Any

import torch

from .. import kernels
from .._environment import device_name, package_version, versions
from .measurement import KERNELS_VARIABLE
from .settings import DTYPES, Settings


def describe_environment(settings: Settings) -> dict[str, Any]:
    """Return the facts about machine and software that decide speed, as they are stored with the measurements."""
    x = torch.zeros(2, 2, 2, 2, device=settings.device, dtype=DTYPES[settings.dtype])
    facts: dict[str, Any] = {
        "device": device_name(settings.device),
        **versions(),
        "platform": platform.platform(),
        "load": [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else [],
        "paths": {name: kernels.selected(x, name) for name in settings.robust},
    }
    if os.environ.get(KERNELS_VARIABLE):
        facts[KERNELS_VARIABLE] = os.environ[KERNELS_VARIABLE]
    if settings.on_gpu:
        facts["cuda"] = torch.version.cuda
        facts["triton"] = package_version("triton")
        facts["launcher"] = os.environ.get("MEDBN_LAUNCH") or "default"
        facts["cudnn_benchmark"] = torch.backends.cudnn.benchmark
        with warnings.catch_warnings():  # newer versions of torch have another name for it
            warnings.simplefilter("ignore")
            facts["tf32_convolutions"] = torch.backends.cudnn.allow_tf32
    else:
        facts["instructions"] = (kernels.instruction_sets() or ("none",))[-1]
    return facts
