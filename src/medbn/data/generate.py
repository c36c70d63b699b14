"""Write corrupted copies of a dataset in the layout of CIFAR-10-C, which other tools read too."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .._files import replace_atomically
from . import corruptions
from .arrays import LABELS, MANIFEST, moved_labels_file, read_manifest
from .dataset import Dataset
from .segmentation import SegmentationDataset

_IMAGES_PER_TASK = 500
_BYTES_PER_TASK = 2**27
"""Fewer images than that make a task where they are large."""

Report = Callable[[str, int, int], object]
"""Called with the corruption's name, the images written so far, and all images of that corruption."""


@dataclass(frozen=True)
class GenerationResult:
    """What one call of ``generate`` wrote."""

    folder: Path
    written: tuple[str, ...]
    skipped: tuple[str, ...]
    """Corruptions that an earlier call had completed."""


def generate(
    dataset: Dataset | SegmentationDataset,
    folder: str | Path,
    *,
    names: Sequence[str] = corruptions.NAMES,
    seed: int = 0,
    frost: str | Path | None = None,
    severities: Sequence[int] = corruptions.SEVERITIES,
    jobs: int = 1,
    report: Report | None = None,
) -> GenerationResult:
    """Write corruptions of a dataset, one file ``folder/NAME.npy`` each, and ``labels.npy``.

    A file holds (5 · N, H, W, 3) bytes, severity by severity; images of one channel are written as grey. Labels of
    segmentation are (N, H, W) bytes; those of a corruption that moves pixels are (5 · N, H, W) in
    ``NAME-labels.npy``. A file appears when it is complete, so a call that was stopped is continued by repeating it. A
    folder that was generated with another seed or dataset, or that holds other files, is refused, and so is a file of
    an earlier version of its corruption.

    Args:
        dataset: the clean images.
        folder: where to write; created if necessary.
        names: which corruptions.
        seed: of the noise.
        frost: photographs of frost, see ``corruptions.corrupt``.
        severities: only these, where the images take much space; the files then hold as many parts, which other tools
            do not expect. Images of one severity are the same with and without the others.
        jobs: how many processes share the work. A script that asks for several needs
            ``if __name__ == "__main__":``, because each process imports it.
        report: called as the work proceeds.
    """
    folder, names = Path(folder), tuple(dict.fromkeys(names))
    for name in names:
        corruptions.check(name, 5, frost)
    for severity in severities:
        corruptions.check_severity(severity)
    stored = tuple(sorted(set(severities)))
    if not stored:
        raise ValueError("severities are some of 1 to 5, got none.")
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}.")
    if len(dataset):  # images or a seed that cannot be used raise an error before the folder is created
        corruptions.corrupt(_read_images(dataset, range(1)), "contrast", 1, seed=seed)
    _write_manifest(folder, _describe(dataset, seed, frost, stored), names)
    _write_labels(folder, dataset, len(stored))
    skipped = tuple(name for name in names if (folder / f"{name}.npy").is_file())
    written = tuple(name for name in names if name not in skipped)
    _, height, width = dataset.shape
    shape = (len(stored) * len(dataset), height, width, 3)
    with _workers(jobs) as submit:
        for name in written:
            if isinstance(dataset, SegmentationDataset) and corruptions.get(name).move_labels:
                _write_array(folder / moved_labels_file(name), shape[:3], _moved_labels(dataset, name, seed, stored))
            progress = partial(report, name) if report else None
            _write_array(folder / f"{name}.npy", shape, submit(_tasks(dataset, name, seed, frost, stored)), progress)
    return GenerationResult(folder, written, skipped)


Task = tuple[torch.Tensor, str, int, int, int, str | Path | None]


def _tasks(
    dataset: Dataset | SegmentationDataset, name: str, seed: int, frost: str | Path | None, severities: Sequence[int]
) -> Iterator[Task]:
    for severity, indices in _parts(dataset, severities):
        yield _read_images(dataset, indices), name, severity, seed, indices.start, frost


def _parts(dataset: Dataset | SegmentationDataset, severities: Sequence[int]) -> Iterator[tuple[int, range]]:
    """Yield the severity and the images of each task, in the order of the file."""
    step = max(1, min(_IMAGES_PER_TASK, _BYTES_PER_TASK // math.prod(dataset.shape)))
    for severity in severities:
        for first in range(0, len(dataset), step):
            yield severity, range(first, min(first + step, len(dataset)))


def _read_images(dataset: Dataset | SegmentationDataset, indices: range) -> torch.Tensor:
    return dataset.read_images(indices) if isinstance(dataset, SegmentationDataset) else dataset.read(indices)


def _write_labels(folder: Path, dataset: Dataset | SegmentationDataset, severities: int) -> None:
    """Write the labels: those of every image of a file, or those of every pixel of the clean images."""
    if isinstance(dataset, SegmentationDataset):
        if not (folder / LABELS).is_file():
            labels = (dataset.read_labels(range(k, k + 1)).numpy() for k in range(len(dataset)))
            _write_array(folder / LABELS, (len(dataset), *dataset.size), labels)
        return
    kind = np.uint8 if len(dataset.classes) <= 256 else np.int64
    with replace_atomically(folder / LABELS) as partial_file, partial_file.open("wb") as file:
        np.save(file, np.tile(dataset.labels.numpy().astype(kind), severities))


def _moved_labels(
    dataset: SegmentationDataset, name: str, seed: int, severities: Sequence[int]
) -> Iterator[npt.NDArray[np.uint8]]:
    for severity, indices in _parts(dataset, severities):
        labels = dataset.read_labels(indices)
        yield corruptions.corrupt_labels(labels, name, severity, seed=seed, first=indices.start).numpy()


def _write_array(
    path: Path,
    shape: tuple[int, ...],
    blocks: Iterable[npt.NDArray[np.uint8]],
    report: Callable[[int, int], object] | None = None,
) -> None:
    """Write a file of bytes from blocks that make up its first axis."""
    done = 0
    with replace_atomically(path) as partial_file, partial_file.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        for block in blocks:
            file.write(np.ascontiguousarray(block).data)
            done += len(block)
            if report:
                report(done, shape[0])


def _run(task: Task) -> Any:
    images, name, severity, seed, first, frost = task
    result = corruptions.corrupt(images, name, severity, seed=seed, first=first, frost=frost)
    return result.permute(0, 2, 3, 1).expand(-1, -1, -1, 3).contiguous().numpy()


def _use_one_thread() -> None:
    torch.set_num_threads(1)


@contextmanager
def _workers(jobs: int) -> Iterator[Callable[[Iterator[Task]], Iterator[Any]]]:
    """Yield a function that runs tasks in that many processes and returns their results in order."""
    if jobs == 1:
        yield lambda tasks: map(_run, tasks)
        return
    # Spawned, not forked: torch's threads do not survive a fork.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_use_one_thread) as pool:
        yield lambda tasks: _map_ahead(pool, tasks, 2 * jobs)


def _map_ahead(pool: ProcessPoolExecutor, tasks: Iterator[Task], depth: int) -> Iterator[Any]:
    """Yield results in order with at most ``depth`` tasks in progress: not all of them fit into memory."""
    pending = []
    for task in tasks:
        pending.append(pool.submit(_run, task))
        if len(pending) > depth:
            yield pending.pop(0).result()
    for future in pending:
        yield future.result()


def _describe(
    dataset: Dataset | SegmentationDataset, seed: int, frost: str | Path | None, severities: tuple[int, ...]
) -> dict[str, Any]:
    """Return the manifest: everything that the images depend on."""
    try:
        photographs = corruptions.frost_fingerprint(frost)
    except FileNotFoundError:
        photographs = "none"  # an error only where frost is asked for, which has been checked
    manifest = {
        "made by": "medbn data generate",
        "dataset": dataset.name,
        "fingerprint": dataset.fingerprint,
        "classes": list(dataset.classes),
        "images": len(dataset),
        "seed": seed,
        "frost": photographs,
        "version": corruptions.VERSION,
        "severities": list(severities),
    }
    if isinstance(dataset, SegmentationDataset):
        colours = [list(colour) for colour in dataset.colours]
        manifest |= {"task": "segmentation", "colours": colours, "scored": list(dataset.scored)}
    return manifest


def _write_manifest(folder: Path, manifest: dict[str, Any], names: Sequence[str]) -> None:
    """Write the manifest; raise an error for a folder with another manifest, an earlier version or other files.

    The manifest's ``versions`` are those above 1 of the corruptions that the folder holds or is about to hold.
    """
    folder.mkdir(parents=True, exist_ok=True)
    existing, versions = read_manifest(folder), {}
    if existing is not None:
        existing.setdefault("severities", list(corruptions.SEVERITIES))  # folders from before this field existed
        different = [key for key in manifest if key != "made by" and existing.get(key) != manifest[key]]
        if different:
            raise FileExistsError(
                f"{folder} was generated with another {', '.join(different)}. Give another folder, or remove this one."
            )
        present = {name for name in corruptions.available() if (folder / f"{name}.npy").is_file()}
        versions = {name: version for name, version in existing.get("versions", {}).items() if name in present}
        for name in names:
            if name in present and versions.get(name, 1) != corruptions.get(name).version:
                raise FileExistsError(
                    f"{folder / name}.npy was generated by another version of the corruption {name!r}. Remove the file"
                    " to generate it again, or give another folder."
                )
    elif any(folder.iterdir()):
        raise FileExistsError(
            f"{folder} holds files that medbn did not generate. Give another folder, or remove this one."
        )
    versions |= {name: corruptions.get(name).version for name in names if corruptions.get(name).version > 1}
    with replace_atomically(folder / MANIFEST) as partial:
        partial.write_text(json.dumps({**manifest, "versions": versions}, indent=2) + "\n")
