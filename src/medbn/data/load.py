"""Open datasets by name or path, and corrupt their images as they are read."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

from .._errors import unknown_name
from . import corruptions
from .cifar_c import load_cifar_c
from .corrupt import corrupt, corrupt_segmentation
from .dataset import Dataset
from .image_folder import load_image_folder
from .registry import DatasetInfo, find_root, get
from .segmentation import (
    SegmentationDataset,
    find_opener,
    is_generated_segmentation,
    load_generated_segmentation,
    load_segmentation_folder,
)


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
    dataset: Dataset
    if _is_path(name):
        if task_of(name) == "segmentation":
            raise _wrong_task(str(name), "segmentation")
        if (Path(name) / "labels.npy").is_file():
            _check_test_split(name, split)
            return load_cifar_c(name, corruption or "", severity, **options)
        dataset = load_image_folder(name, split=split, **options)
    else:
        info = _find(str(name), "classification")
        dataset = _open(info, split, corruption, severity, root, options)
        if info.corrupted:
            return dataset
    if corruption is None:
        return dataset
    return corrupt(dataset, corruption, severity, seed=seed, frost=frost)


def load_segmentation(
    name: str | Path,
    split: str = "test",
    *,
    corruption: str | None = None,
    severity: int = 5,
    seed: int = 0,
    frost: str | Path | None = None,
    root: str | Path | None = None,
    **options: Any,
) -> SegmentationDataset:
    """Open a segmentation dataset by its name or path.

    Args:
        name: a dataset of ``available()`` whose task is "segmentation"; or a path (any name with a slash) to a folder
            with ``images/`` and ``labels/``, see ``load_segmentation_folder``, to Cityscapes, SYNTHIA or CamVid in
            their published layouts, or to a folder that ``medbn data generate`` wrote.
        split: "train", "val" or "test". Where the labels of the test part are not public (Cityscapes), "test" opens
            the validation part; where there is none, "val" opens the test part.
        corruption: corrupts the images as they are read; a corruption that moves pixels moves their labels too.
        severity: 1 to 5.
        seed: of the corruption's noise.
        frost: photographs of frost, see ``corruptions.corrupt``.
        root: the data folder, see ``find_root``.
        options: further arguments of the function that opens the dataset, such as ``size``.

    >>> load_segmentation("scenes", corruption="fog", severity=3).name
    'scenes/fog/3'
    """
    if split not in ("train", "val", "test"):
        raise unknown_name("split", split, ("train", "val", "test"))
    dataset: SegmentationDataset
    if _is_path(name):
        if is_generated_segmentation(name):
            _check_test_split(name, split)
            return load_generated_segmentation(name, corruption or "", severity, **options)
        # The reader of the simplest layout says what is wrong with a folder in none of them.
        dataset = (find_opener(name) or load_segmentation_folder)(Path(name), split, **options)
    else:
        info = _find(str(name), "segmentation")
        dataset = _open(info, split, corruption, severity, root, options)
        if info.corrupted:
            return dataset
    if corruption is None:
        return dataset
    return corrupt_segmentation(dataset, corruption, severity, seed=seed, frost=frost)


def task_of(name: str | Path) -> str:
    """Return what the labels of a dataset, by its name or path, are for: "classification" or "segmentation"."""
    if _is_path(name):
        segmentation = find_opener(name) is not None or is_generated_segmentation(name)
        return "segmentation" if segmentation else "classification"
    return get(str(name)).task


def _is_path(name: str | Path) -> bool:
    return isinstance(name, Path) or os.sep in name or "/" in name or name in (".", "..")


def _find(name: str, task: str) -> DatasetInfo:
    """Return what is known about a dataset; raise an error unless it is for that task."""
    info = get(name)
    if info.task != task:
        raise _wrong_task(name, info.task)
    return info


def _wrong_task(name: str, task: str) -> ValueError:
    function = "load_segmentation" if task == "segmentation" else "load"
    return ValueError(f"{name} is a dataset for {task}: open it with data.{function}({name!r}).")


def _open(
    info: DatasetInfo,
    split: str,
    corruption: str | None,
    severity: int,
    root: str | Path | None,
    options: dict[str, Any],
) -> Any:
    """Open a named dataset; raise an error that says how to get it if it is not there."""
    if not info.is_present(root):
        raise FileNotFoundError(f"{info.name} is not in {find_root(root)}; get it: {info.how_to_get()}.")
    _check_options(info, options)
    if not info.corrupted:
        return info.open(info.path(root), split=split, **options)
    _check_test_split(info.name, split)
    if corruption is None:
        raise ValueError(f"{info.name} needs a corruption: {', '.join(corruptions.NAMES)}.")
    return info.open(info.path(root), corruption=corruption, severity=severity, **options)


def _check_test_split(name: str | Path, split: str) -> None:
    if split == "train":
        raise ValueError(f"{name} has only a test split.")


def _check_options(info: DatasetInfo, options: dict[str, Any]) -> None:
    """Raise an error for an option that the function that opens the dataset does not have."""
    parameters = inspect.signature(info.open).parameters.values()
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters):
        return
    known = [one.name for one in parameters if one.name not in ("folder", "path", "split", "corruption", "severity")]
    for option in options:
        if option not in known:
            raise ValueError(f"{info.name} has no option {option!r}; it has {', '.join(known) or 'none'}.")
