"""Open datasets by name or path, and corrupt their images as they are read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from .._errors import unknown_name
from . import corruptions
from .cifar_c import load_cifar_c
from .dataset import Dataset, Indices, digest
from .image_folder import load_image_folder
from .registry import find_root, get


def load(
    name: str | Path,
    split: str = "test",
    *,
    corruption: str | None = None,
    severity: int = 5,
    seed: int = 0,
    frost: str | Path | None = None,
    root: str | Path | None = None,
    **options: Any,
) -> Dataset:
    """Open a dataset by its name or path.

    Args:
        name: one of ``available()``; or a path (any name with a slash) to a folder of class folders, or to a folder
            that ``medbn data generate`` wrote.
        split: "train" or "test".
        corruption: which part of a corrupted dataset ("cifar10-c") to open. Images of a clean one ("digits", a folder)
            are corrupted as they are read, to the same bits that ``medbn data generate`` writes.
        severity: 1 to 5.
        seed: of the corruption's noise.
        frost: photographs of frost, see ``corruptions.corrupt``.
        root: the data folder, see ``find_root``.
        options: further arguments of the function that opens the dataset, such as ``size`` of an image folder.

    >>> load("digits", corruption="fog", severity=3, frost="synthetic").name
    'digits/fog/3'
    """
    if split not in ("train", "test"):
        raise unknown_name("split", split, ("train", "test"))
    if isinstance(name, Path) or os.sep in name or "/" in name or name in (".", ".."):
        if (Path(name) / "labels.npy").is_file():
            _check_test_split(name, split)
            return load_cifar_c(name, corruption or "", severity, **options)
        dataset = load_image_folder(name, split=split, **options)
    else:
        info = get(name)
        if not info.is_present(root):
            raise FileNotFoundError(f"{name} is not in {find_root(root)}; get it: {info.how_to_get()}.")
        if info.corrupted:
            _check_test_split(name, split)
            if corruption is None:
                raise ValueError(f"{name} needs a corruption: {', '.join(corruptions.NAMES)}.")
            return info.open(info.path(root), corruption=corruption, severity=severity, **options)
        dataset = info.open(info.path(root), split=split, **options)
    if corruption is None:
        return dataset
    return corrupt(dataset, corruption, severity, seed=seed, frost=frost)


def corrupt(
    dataset: Dataset, corruption: str, severity: int, *, seed: int = 0, frost: str | Path | None = None
) -> Dataset:
    """Return a dataset whose images are corrupted as they are read; the arguments are those of ``load``."""
    corruptions.check(corruption, severity, frost)

    def read(indices: Indices) -> Tensor:
        images = dataset.read(indices)
        if not len(indices):
            return images
        if isinstance(indices, range) and indices.step == 1:
            return corruptions.corrupt(images, corruption, severity, seed=seed, first=indices.start, frost=frost)
        return corrupt_one_by_one(images, indices)

    def corrupt_one_by_one(images: Tensor, indices: Sequence[int]) -> Tensor:
        result = images.clone()
        for position, index in enumerate(indices):
            one = slice(position, position + 1)
            result[one] = corruptions.corrupt(
                images[one], corruption, severity, seed=seed, first=int(index), frost=frost
            )
        return result

    def compute_fingerprint() -> str:
        info = corruptions.get(corruption)
        photographs = corruptions.frost_fingerprint(frost) if info.uses_frost else ""
        parts = [dataset.fingerprint, corruption, f"{severity} {seed} {corruptions.VERSION}", photographs]
        if info.version > 1:  # fingerprints from before corruptions had versions stay valid
            parts.append(f"version {info.version}")
        return digest(*parts)

    return Dataset(
        f"{dataset.name}/{corruption}/{severity}",
        dataset.split,
        dataset.classes,
        dataset.labels,
        dataset.shape,
        read,
        compute_fingerprint,
        dataset.horizontal_flip,
    )


def _check_test_split(name: str | Path, split: str) -> None:
    if split != "test":
        raise ValueError(f"{name} has only a test split.")
