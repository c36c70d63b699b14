"""Segmentation datasets whose images and labels are files, read when they are needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..._errors import abbreviate
from ..batching import Indices
from ..dataset import digest
from ..image_file import default_size, image_size, read_rgb
from .class_table import ClassTable
from .dataset import SegmentationDataset
from .label_file import read_label_file

Pair = tuple[Path, Path]
"""The files of an image and of its labels."""
Result = TypeVar("Result")


def open_pairs(
    name: str,
    split: str,
    pairs: Sequence[Pair],
    table: ClassTable,
    *,
    size: tuple[int, int] | None = None,
    shuffle: int | None = 0,
    read_numbers: Callable[[Path], npt.NDArray[Any]] = read_label_file,
    workers: int | None = None,
) -> SegmentationDataset:
    """Return a segmentation dataset of pairs of files.

    Args:
        name: what reports call the dataset.
        split: "train", "val" or "test".
        pairs: the files.
        table: the classes, and the numbers that stand for them in the label files.
        size: height and width; images are resized bilinearly, labels by nearest neighbour. By default the size of the
            first image, which all others must have too.
        shuffle: the seed of a fixed random order, because neighbouring frames of a video are nearly the same image;
            None keeps the order of ``pairs``.
        read_numbers: returns the numbers (H, W) in a label file.
        workers: threads that decode files; by default one per core, at most 8.
    """
    if not pairs:
        raise ValueError(f"{name} has no images in its {split} part.")
    if size is not None and (len(size) != 2 or min(size) < 1):
        raise ValueError(f"size must be the height and the width of an image, got {size}.")
    if shuffle is not None:
        pairs = [pairs[k] for k in np.random.default_rng(shuffle).permutation(len(pairs))]
    fixed, (height, width) = size is None, size or default_size(pairs[0][0])
    workers = workers or min(8, os.cpu_count() or 1)

    def read_image(index: int) -> npt.NDArray[np.uint8]:
        file = pairs[index][0]
        image = read_rgb(file)
        if image.size != (width, height):
            if fixed:
                raise ValueError(
                    f"{file} has {image.height} × {image.width} px (height × width), but {pairs[0][0]} has"
                    f" {height} × {width} px. Give a size, and all images are resized to it."
                )
            from PIL import Image

            image = image.resize((width, height), Image.Resampling.BILINEAR)
        return np.asarray(image)

    def read_label(index: int) -> npt.NDArray[np.uint8]:
        file, label_file = pairs[index]
        labels = table.to_labels(read_numbers(label_file), label_file)
        expected = image_size(file)
        if labels.shape != expected:
            raise ValueError(
                f"{label_file} has {labels.shape[0]} × {labels.shape[1]} px (height × width), but its image {file} has"
                f" {expected[0]} × {expected[1]} px."
            )
        return resize_labels(labels, height, width)

    def read_images(indices: Indices) -> Tensor:
        images = _map(read_image, indices, workers)
        stacked = np.stack(images) if images else np.empty((0, height, width, 3), dtype=np.uint8)
        return torch.from_numpy(stacked).permute(0, 3, 1, 2).contiguous()

    def read_labels(indices: Indices) -> Tensor:
        labels = _map(read_label, indices, workers)
        return torch.from_numpy(np.stack(labels) if labels else np.empty((0, height, width), dtype=np.uint8))

    def compute_fingerprint() -> str:
        contents = _map(lambda k: digest(*(file.read_bytes() for file in pairs[k])), range(len(pairs)), workers)
        return digest(f"{height}x{width}", "\n".join(contents), table.fingerprint)

    return SegmentationDataset(
        name,
        split,
        table.names,
        table.colours,
        (height, width),
        len(pairs),
        read_images,
        read_labels,
        compute_fingerprint,
        scored=table.scored,
    )


def resize_labels(labels: npt.NDArray[np.uint8], height: int, width: int) -> npt.NDArray[np.uint8]:
    """Return labels (H, W) at another size: each pixel has the label at its centre."""
    old_height, old_width = labels.shape
    rows = (2 * np.arange(height) + 1) * old_height // (2 * height)
    columns = (2 * np.arange(width) + 1) * old_width // (2 * width)
    resized: npt.NDArray[np.uint8] = labels[rows[:, None], columns]
    return resized


def match_files(images: Mapping[str, Path], labels: Mapping[str, Path]) -> list[Pair]:
    """Return the pairs of files with the same key, sorted by key; a key without a pair is an error that names its file.

    Args:
        images: the image files.
        labels: the label files.
    """
    for kind, alone in (("labels", images.keys() - labels.keys()), ("image", labels.keys() - images.keys())):
        if alone:
            files = sorted(str((images if kind == "labels" else labels)[key]) for key in alone)
            raise FileNotFoundError(f"no {kind} for {abbreviate(files, 2)}.")
    return [(images[key], labels[key]) for key in sorted(images)]


def list_files(folder: Path, ending: str | tuple[str, ...]) -> list[Path]:
    """Return the files at any depth of a folder whose names end so, sorted; a folder that is not there is an error."""
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}.")
    return sorted(file for file in folder.rglob("*") if file.name.lower().endswith(ending) and file.is_file())


def _map(function: Callable[[int], Result], indices: Indices, workers: int) -> list[Result]:
    """Return the function's results for all indices, in order."""
    if len(indices) == 1:  # as in training, where many threads read one image each
        return [function(indices[0])]
    with ThreadPoolExecutor(workers, thread_name_prefix="medbn-decode") as pool:
        return list(pool.map(function, indices))
