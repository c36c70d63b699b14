"""Estimate how long a recipe takes on a device: its arithmetic, divided by the measured speed of a convolution."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from .. import data, estimators, models
from .._environment import device_name, versions
from .._files import replace_atomically
from ..attacks import owned_before
from .cell import CONTINUAL, Cell, Setting
from .cell_stream import make_adapter
from .loading import load_cell
from .owned import count_benign
from .place import Place
from .recipe import DIGITS, Recipe

OVERHEAD, ROBUST_OVERHEAD = 1.5, 4.0
"""The time of a batch over that of its convolutions, with BatchNorm and with a robust estimator, roughly."""
LONGEST = 7 * 86400.0
"""Seconds from which a recipe is too long to run as a whole."""
GPU_SPEED = 1.2e14
"""Floating-point operations per second of an NVIDIA H200, from the times of attacked batches in
``results/cifar10-c.db.xz``: 1.8 s with BatchNorm and 2.6 s with MedBN (ResNet-26, 200 images,
100 steps)."""
BUSY = 0.5
"""The load per core above which a measurement may be too slow, so that it is repeated the next time."""


def calibrate(device: str) -> float:
    """Return the speed of a device as ``measure_speed`` does, measured once and kept in the user's cache folder.

    What else the machine does at the moment would otherwise change the estimates. A measurement on a busy machine is
    repeated the next time, and the highest speed counts.
    """
    facts = versions()
    key = " ".join((device_name(device), f"torch {facts['torch']}", f"threads {facts['threads']}"))
    path = data.cache_folder() / "calibration.json"
    stored = _read_calibrations(path)
    speed, was_busy = stored.get(key, (0.0, True))
    if not was_busy:
        return speed
    speed = max(speed, measure_speed(device))
    stored[key] = speed, _is_busy()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_atomically(path) as partial:
            partial.write_text(json.dumps(stored, indent=1), encoding="utf-8")
    except OSError:
        pass  # the next estimate measures again
    return speed


def _read_calibrations(path: Path) -> dict[str, tuple[float, bool]]:
    """Return the speeds of a file, each with whether the machine was busy; nothing if the file cannot be read."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        speeds = {str(key): (float(speed), bool(busy)) for key, (speed, busy) in stored.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
    return {key: value for key, value in speeds.items() if 1e6 < value[0] < 1e18}


def _is_busy() -> bool:
    """Return whether other programs use a good part of this machine; False where the system does not tell."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > BUSY * (os.cpu_count() or 1)


def measure_speed(device: str) -> float:
    """Return the floating-point operations per second of a convolution, measured in half a second."""
    layer = nn.Conv2d(64, 64, 3, padding=1).to(device)
    x = torch.rand(32, 64, 16, 16, device=device)
    operations = 2 * 32 * 64 * 64 * 9 * 16 * 16

    def convolve() -> None:
        layer(x)
        if x.is_cuda:
            torch.cuda.synchronize()

    with torch.no_grad():
        return operations / shortest_time(convolve)


def shortest_time(work: Callable[[], object], within: float = 0.5) -> float:
    """Return the shortest time of a function in seconds, over repeated calls during ``within`` seconds.

    A few milliseconds may fall into a moment in which another program has the cores; half a second hardly does.
    """
    for _ in range(3):
        work()  # the first calls choose kernels and start threads
    best = float("inf")
    now = time.perf_counter()
    until = now + within
    while now < until:
        began = now
        work()
        now = time.perf_counter()
        best = min(best, now - began)
    return best


@lru_cache
def forward_operations(model: str, channels: int, height: int, width: int) -> float:
    """Return the floating-point operations of one image's forward pass; a ResNet-50's if the model cannot be built."""
    try:
        with torch.device("meta"):
            network = models.get(model, **({} if ":" in model else {"channels": channels}))  # type: ignore[arg-type]
            x = torch.rand(1, channels, height, width)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            network(x)
        return float(counter.get_total_flops())
    except Exception:  # a user's model, or a library that is not installed: this is an estimate
        return 8.2e9 * height * width / 224**2


def estimate_seconds(recipe: Recipe, per_second: float) -> float:
    """Return the estimated time of all cells of a recipe, one after the other.

    Args:
        recipe: what would run.
        per_second: floating-point operations per second, as ``calibrate`` returns them.
    """
    total = 0.0
    poisoned: set[Hashable] = set()
    for cell in recipe.cells():
        shape, batches = image_shape(cell.setting), count_batches(cell, recipe.batches)
        steps = 0
        if cell.attack:
            surrogate = first_surrogate(cell.method, cell.setting.preset)
            first = (cell.setting, cell.corruption, cell.estimator, cell.attack, cell.seed, surrogate)
            attacked = count_attacked(cell, batches) - (first in poisoned)
            poisoned.add(first)
            steps = attacked * cell.attack.steps * cell.attack.restarts
        served = batches + (count_attacked(cell, batches) if cell.owned else 0)
        passes = 6.0 * served + 3.0 * steps
        work = cell.setting.batch_size * passes * forward_operations(cell.setting.model, *shape)
        overhead = ROBUST_OVERHEAD if estimators.get(cell.estimator).robust else OVERHEAD
        total += work * overhead / per_second
    return total


@lru_cache
def first_surrogate(method: str, preset: str) -> Hashable:
    """Return a value that is equal for methods whose first poisoned batch the poison cache shares."""
    setting = replace(DIGITS, preset=preset, batch_size=8, malicious=1)
    cell = Cell(setting, "contrast", method, "median", None, "instant")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some methods advise against so small a model
            adapter = make_adapter(load_cell(cell, Place(), batches=1), "cpu", source_batches=1)
    except (TypeError, ValueError):  # a method that does not take the small model
        return method
    return adapter.surrogate_key(adapter.source_state, setting.batch_size)


def count_batches(cell: Cell, limit: int | None) -> int:
    """Return how many batches a cell has, at most ``limit``; without the attacker's own."""
    setting = cell.setting
    images = _dataset_size(setting.data)[0]
    images = min(setting.per_corruption or images, images)
    if cell.corruption == CONTINUAL:
        images *= len(cell.corruptions)
    whole = images // setting.batch_size
    whole = count_benign(whole, cell.owned) if cell.owned else whole
    return min(limit or whole, whole)


def count_attacked(cell: Cell, batches: int) -> int:
    """Return how many batches are crafted, where so many are served."""
    if cell.attack is None:
        return 0
    return owned_before(batches, cell.owned) if cell.owned else batches - cell.warm_up


def image_shape(setting: Setting) -> tuple[int, int, int]:
    """Return the channels, height and width of the images of a setting."""
    shape = _dataset_size(setting.data)[1]
    return shape if setting.size is None else (shape[0], *setting.size)


def _dataset_size(name: str) -> tuple[int, tuple[int, int, int]]:
    """Return the number and shape of a dataset's images; CIFAR's if they are not known before it is opened."""
    info = data.get(name) if name in data.available() else None
    return (info and info.images) or 10_000, (info and info.shape) or (3, 32, 32)


def describe_duration(seconds: float, device: str, per_second: float) -> str:
    """Return an estimated time in words; beyond a week, that it is too long here, and what it takes on a GPU.

    Args:
        seconds: the estimate.
        device: that it is for.
        per_second: the speed that it was made with. Measured again, a busy machine would have another one.

    >>> describe_duration(40, "cpu", 1e9), describe_duration(4000, "cpu", 1e9), describe_duration(5e5, "cpu", 1e9)
    ('40 s', '1.1 h', '6 days')
    """
    if seconds > LONGEST:
        hours = round(gpu_hours(seconds, device, per_second))
        return f"too long here, about {hours:,} GPU-hour{'' if hours == 1 else 's'}"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400 / 2:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 2 * 86400 else f"{seconds / 86400:.0f} days"


def gpu_hours(seconds: float, device: str, per_second: float) -> float:
    """Return the hours on a GPU, at least one, of what takes ``seconds`` on this machine's device."""
    gpu = seconds if torch.device(device).type == "cuda" else seconds * per_second / GPU_SPEED
    return max(1.0, gpu / 3600)
