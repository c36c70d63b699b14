"""CIFAR-10 and CIFAR-100 in their authors' binary layout, which is read without unpickling anything."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from .dataset import Dataset, from_tensors, read_text

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
IMAGE_BYTES = 3 * 32 * 32


def cifar10(folder: Path, split: str = "test") -> Dataset:
    """Open CIFAR-10 from ``cifar-10-batches-bin``: records of one label byte and 3,072 pixel bytes."""
    files = [f"data_batch_{part}.bin" for part in range(1, 6)] if split == "train" else ["test_batch.bin"]
    return _read_records("cifar10", split, [folder / file for file in files], 1, CIFAR10_CLASSES)


def cifar100(folder: Path, split: str = "test") -> Dataset:
    """Open CIFAR-100 from ``cifar-100-binary``: records of a coarse label, a fine label and 3,072 pixel bytes.

    The classes are the hundred fine ones.
    """
    return _read_records("cifar100", split, [folder / f"{split}.bin"], 2, cifar100_classes(folder))


def cifar100_classes(folder: Path) -> tuple[str, ...]:
    """Return the names of the hundred fine classes from the archive's text file, or numbers if it is missing."""
    file = folder / "fine_label_names.txt"
    if not file.is_file():
        return tuple(str(number) for number in range(100))
    return tuple(line.strip() for line in read_text(file).splitlines() if line.strip())


def _read_records(name: str, split: str, files: list[Path], label_bytes: int, classes: tuple[str, ...]) -> Dataset:
    length = label_bytes + IMAGE_BYTES
    parts = []
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"{name} is incomplete: {file} is missing.")
        data = np.fromfile(file, dtype=np.uint8)
        if len(data) == 0 or len(data) % length:
            raise ValueError(
                f"{file} is not in the CIFAR binary layout: {len(data)} bytes are not a multiple of {length}."
            )
        parts.append(data.reshape(-1, length))
    records = torch.from_numpy(np.concatenate(parts))
    labels = records[:, label_bytes - 1]
    if int(labels.max()) >= len(classes):
        raise ValueError(f"{files[0]} has a label {int(labels.max())}, but {name} has {len(classes)} classes.")
    return from_tensors(name, split, classes, records[:, label_bytes:].reshape(-1, 3, 32, 32), labels)
