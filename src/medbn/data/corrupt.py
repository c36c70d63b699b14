"""Datasets whose images are corrupted as they are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from . import corruptions
from .batching import Indices
from .dataset import Dataset, digest
from .segmentation import SegmentationDataset


def corrupt(
    dataset: Dataset, corruption: str, severity: int, *, seed: int = 0, frost: str | Path | None = None
) -> Dataset:
    """Return a dataset whose images are corrupted as they are read; the arguments are those of ``load``."""
    corruptions.check(corruption, severity, frost)

    def apply(images: Tensor, first: int) -> Tensor:
        return corruptions.corrupt(images, corruption, severity, seed=seed, first=first, frost=frost)

    return Dataset(
        f"{dataset.name}/{corruption}/{severity}",
        dataset.split,
        dataset.classes,
        dataset.labels,
        dataset.shape,
        lambda indices: _apply_by_index(dataset.read(indices), indices, apply),
        lambda: _fingerprint(dataset, corruption, severity, seed, frost),
        dataset.horizontal_flip,
    )


def corrupt_segmentation(
    dataset: SegmentationDataset, corruption: str, severity: int, *, seed: int = 0, frost: str | Path | None = None
) -> SegmentationDataset:
    """Return a segmentation dataset whose images are corrupted as they are read.

    A corruption that moves pixels (the elastic transform) moves their labels by the same displacement. The arguments
    are those of ``load_segmentation``.
    """
    corruptions.check(corruption, severity, frost)

    def apply(images: Tensor, first: int) -> Tensor:
        return corruptions.corrupt(images, corruption, severity, seed=seed, first=first, frost=frost)

    def move(labels: Tensor, first: int) -> Tensor:
        return corruptions.corrupt_labels(labels, corruption, severity, seed=seed, first=first)

    return replace(
        dataset,
        name=f"{dataset.name}/{corruption}/{severity}",
        read_images=lambda indices: _apply_by_index(dataset.read_images(indices), indices, apply),
        read_labels=lambda indices: _apply_by_index(dataset.read_labels(indices), indices, move),
        compute_fingerprint=lambda: _fingerprint(dataset, corruption, severity, seed, frost),
    )


def _apply_by_index(values: Tensor, indices: Indices, apply: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Return ``apply(values, first)``: all at once where the indices are consecutive, else one by one."""
    if not len(indices):
        return values
    if isinstance(indices, range) and indices.step == 1:
        return apply(values, indices.start)
    return torch.cat([apply(values[k : k + 1], int(index)) for k, index in enumerate(indices)])


def _fingerprint(
    dataset: Dataset | SegmentationDataset, corruption: str, severity: int, seed: int, frost: str | Path | None
) -> str:
    info = corruptions.get(corruption)
    photographs = corruptions.frost_fingerprint(frost) if info.uses_frost else ""
    parts = [dataset.fingerprint, corruption, f"{severity} {seed} {corruptions.VERSION}", photographs]
    if info.version > 1:  # fingerprints from before corruptions had versions stay valid
        parts.append(f"version {info.version}")
    return digest(*parts)
