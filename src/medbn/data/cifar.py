"""CIFAR-10 and CIFAR-100 in their authors' binary layout. Nothing is unpickled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from .dataset import Dataset, of_array

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PIXELS = 3 * 32 * 32


def cifar10(folder: Path, split: str = "test") -> Dataset:
    """CIFAR-10 from ``cifar-10-batches-bin``: records of one label byte and 3,072 pixel bytes."""
    files = [f"data_batch_{part}.bin" for part in range(1, 6)] if split == "train" else ["test_batch.bin"]
    return _records("cifar10", split, [folder / file for file in files], 1, CIFAR10_CLASSES)


def cifar100(folder: Path, split: str = "test") -> Dataset:
    """CIFAR-100 from ``cifar-100-binary``: records of a coarse label, a fine label (ours) and 3,072 pixel bytes."""
    return _records("cifar100", split, [folder / f"{split}.bin"], 2, cifar100_classes(folder))


def cifar100_classes(folder: Path) -> tuple[str, ...]:
    """The hundred fine names, which the archive carries in a text file."""
    file = folder / "fine_label_names.txt"
    if not file.is_file():
        return tuple(str(number) for number in range(100))
    return tuple(line.strip() for line in file.read_text().splitlines() if line.strip())


def _records(name: str, split: str, files: list[Path], label_bytes: int, classes: tuple[str, ...]) -> Dataset:
    parts = []
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"{name} is incomplete: {file} is missing.")
        data = np.fromfile(file, dtype=np.uint8)
        if len(data) == 0 or len(data) % (label_bytes + PIXELS):
            raise ValueError(
                f"{file} is not in the CIFAR binary layout: {len(data)} bytes are no records of {label_bytes + PIXELS}."
            )
        parts.append(data.reshape(-1, label_bytes + PIXELS))
    records = torch.from_numpy(np.concatenate(parts))
    labels = records[:, label_bytes - 1]
    if int(labels.max()) >= len(classes):
        raise ValueError(f"{files[0]} has a label {int(labels.max())}, but {name} has {len(classes)} classes.")
    return of_array(name, split, classes, records[:, label_bytes:].reshape(-1, 3, 32, 32), labels)
