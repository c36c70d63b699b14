"""Write corrupted copies of a dataset in the layouts that every tool reads."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from . import corruptions
from .cifar_c import MANIFEST
from .cifar_c import manifest as noted
from .dataset import Dataset

_IMAGES_AT_ONCE = 500

Report = Callable[[str, int, int], object]
"""Called with what is being made, images done, and images in all."""


@dataclass(frozen=True)
class Made:
    """What was made, and where."""

    folder: Path
    written: tuple[str, ...]
    found: tuple[str, ...]
    """Corruptions that an earlier call had finished."""


def make(
    dataset: Dataset,
    folder: str | Path,
    *,
    names: Sequence[str] = corruptions.NAMES,
    seed: int = 0,
    frost: str | Path | None = None,
    jobs: int = 1,
    report: Report | None = None,
) -> Made:
    """Write every corruption at all five severities as ``folder/NAME.npy``, beside ``labels.npy``: CIFAR-C's layout.

    A file holds (5 · N, H, W, 3) bytes, severity by severity; images of one channel are written as grey. Each file
    appears when it is complete, so a call that was stopped is continued by repeating it. A folder that another seed,
    dataset or tool has filled is refused. ``jobs`` processes share the work; a script that
    asks for several must be importable (``if __name__ == "__main__":``).
    """
    folder, names = Path(folder), tuple(dict.fromkeys(names))
    for name in names:
        corruptions.check(name, 5, frost)
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}.")
    if len(dataset):  # what is wrong with the images or the seed shows before the folder is ours
        corruptions.corrupt(dataset.read(range(1)), "contrast", 1, seed=seed)
    _claim(folder, _manifest(dataset, seed, frost))
    small = np.uint8 if len(dataset.classes) <= 256 else np.int64
    _save(folder / "labels.npy", np.tile(dataset.labels.numpy().astype(small), 5))
    found = tuple(name for name in names if (folder / f"{name}.npy").is_file())
    written = tuple(name for name in names if name not in found)
    count, (_, height, width) = len(dataset), dataset.shape
    with _workers(jobs) as submit:
        for name in written:
            final, partial = folder / f"{name}.npy", folder / f".{name}.npy.part"
            shape = (5 * count, height, width, 3)
            done = 0
            try:
                with partial.open("wb") as file:
                    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
                    np.lib.format.write_array_header_1_0(file, header)
                    for images in submit(_tasks(dataset, name, seed, frost)):
                        file.write(images)
                        done += len(images)
                        if report:
                            report(name, done, shape[0])
                os.replace(partial, final)
            finally:
                partial.unlink(missing_ok=True)
    return Made(folder, written, found)


Task = tuple[torch.Tensor, str, int, int, int, str | Path | None]


def _tasks(dataset: Dataset, name: str, seed: int, frost: str | Path | None) -> Iterator[Task]:
    for severity in corruptions.SEVERITIES:
        for first in range(0, len(dataset), _IMAGES_AT_ONCE):
            images = dataset.read(range(first, min(first + _IMAGES_AT_ONCE, len(dataset))))
            yield images, name, severity, seed, first, frost


def _run(task: Task) -> Any:
    images, name, severity, seed, first, frost = task
    result = corruptions.corrupt(images, name, severity, seed=seed, first=first, frost=frost)
    return result.permute(0, 2, 3, 1).expand(-1, -1, -1, 3).contiguous().numpy()


def _alone() -> None:
    torch.set_num_threads(1)


@contextmanager
def _workers(jobs: int) -> Iterator[Callable[[Iterator[Task]], Iterator[Any]]]:
    if jobs == 1:
        yield lambda tasks: map(_run, tasks)
        return
    # Spawned, not forked: torch's threads do not survive a fork.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_alone) as pool:
        yield lambda tasks: _ahead(pool, tasks, 2 * jobs)


def _ahead(pool: ProcessPoolExecutor, tasks: Iterator[Task], depth: int) -> Iterator[Any]:
    """Results in order, with a few tasks under way and never all of them in memory."""
    waiting = []
    for task in tasks:
        waiting.append(pool.submit(_run, task))
        if len(waiting) > depth:
            yield waiting.pop(0).result()
    for future in waiting:
        yield future.result()


def _manifest(dataset: Dataset, seed: int, frost: str | Path | None) -> dict[str, Any]:
    try:
        texture = corruptions.frost_fingerprint(frost)
    except FileNotFoundError:
        texture = "none"  # nobody has asked for it
    return {
        "made by": "medbn data make",
        "dataset": dataset.name,
        "fingerprint": dataset.fingerprint,
        "classes": list(dataset.classes),
        "images": len(dataset),
        "seed": seed,
        "frost": texture,
        "version": corruptions.VERSION,
    }


def _claim(folder: Path, manifest: dict[str, Any]) -> None:
    """Make sure that the folder is ours to write to: new, or made by the same command."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / MANIFEST
    there = noted(folder)
    if there is not None:
        if there != manifest:
            other = [key for key in manifest if there.get(key) != manifest[key]]
            raise FileExistsError(
                f"{folder} was made with another {', '.join(other)}. Give another folder, or remove this one."
            )
    elif any(folder.iterdir()):
        raise FileExistsError(f"{folder} has files that are not ours. Give another folder, or remove this one.")
    file.write_text(json.dumps(manifest, indent=2) + "\n")


def _save(file: Path, array: Any) -> None:
    partial = file.with_name(f".{file.name}.part")
    with partial.open("wb") as out:
        np.save(out, array)
    os.replace(partial, file)
