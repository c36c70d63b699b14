"""Folders of image files, one folder per class, as ImageNet-C and most people's own images are stored."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from . import corruptions
from .arrays import LABELS
from .batching import Indices
from .cifar_c import load_cifar_c
from .dataset import Dataset, digest, read_text
from .image_file import default_size, read_image

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff")


def load_image_folder(
    path: str | Path,
    *,
    size: int | tuple[int, int] | None = None,
    subset: Sequence[str] | str | Path | None = None,
    shuffle: int | None = 0,
    name: str | None = None,
    split: str = "test",
    workers: int | None = None,
) -> Dataset:
    """Open a folder of class folders; images are decoded when they are read.

    Classes are the folders in alphabetical order.

    Args:
        path: the folder; images lie at any depth below a class folder.
        size: pixels, one number or (height, width). Images of another size are scaled until their shorter side is 8/7
            of it, then cropped at the centre (256 → 224, as for ImageNet). By default the size of the first image.
        subset: paths below ``path``, or a text file with one path per line: only these, in this order.
        shuffle: the seed of a fixed random order, since a stream sorted by class is unlike any that is served; None
            sorts by class and name.
        name: what reports call the dataset; by default the folder's name.
        split: what the dataset's ``split`` says.
        workers: threads that decode images; by default one per core, at most 8.
    """
    root = Path(path)
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {root}.")
    classes = tuple(
        sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
    )
    if not classes:
        raise ValueError(f"{root} has no class folders: expected {root.name}/CLASS/IMAGE.")
    files = _list_images(root, classes, shuffle) if subset is None else _list_subset(root, classes, subset)
    if not files:
        raise ValueError(f"no images in {root}: expected files that end in {', '.join(SUFFIXES)}.")
    height, width = (size, size) if isinstance(size, int) else size or default_size(root / files[0])
    if min(height, width) < 1:
        raise ValueError(f"size must be at least 1, got {size}.")
    class_index = {kind: index for index, kind in enumerate(classes)}
    labels = torch.tensor([class_index[file.split("/")[0]] for file in files])
    workers = workers or min(8, os.cpu_count() or 1)

    def read(indices: Indices) -> Tensor:
        with ThreadPoolExecutor(workers, thread_name_prefix="medbn-decode") as pool:
            images = list(pool.map(lambda i: read_image(root / files[i], height, width), indices))
        if not images:
            return torch.empty(0, 3, height, width, dtype=torch.uint8)
        return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()

    def compute_fingerprint() -> str:
        with ThreadPoolExecutor(workers, thread_name_prefix="medbn-decode") as pool:
            contents = list(pool.map(lambda file: digest((root / file).read_bytes()), files))
        return digest(f"{height}x{width}", "\n".join(contents), labels.numpy(), "\n".join(classes))

    return Dataset(name or root.name, split, classes, labels, (3, height, width), read, compute_fingerprint)


def load_imagenet(folder: Path, split: str = "test") -> Dataset:
    """Open ImageNet from ``val/CLASS/IMAGE`` and ``train/CLASS/IMAGE``, scaled to 256 and cropped to 224 pixels.

    A part of the images will do if every class has some: classes are the folders in alphabetical order.
    """
    part = folder / ("train" if split == "train" else "val")
    if not part.is_dir():
        raise FileNotFoundError(f"imagenet has no {split} images: there is no folder {part}.")
    return load_image_folder(part, size=224, name="imagenet", split=split)


def load_imagenet_c(
    path: Path, corruption: str, severity: int, subset: Sequence[str] | str | Path | None = None
) -> Dataset:
    """Open one corruption at one severity of ImageNet-C: as published, or as ``medbn data generate`` writes it.

    Args:
        path: the folder.
        corruption: its name.
        severity: 1 to 5.
        subset: of the published images, see ``load_image_folder``.
    """
    corruptions.get(corruption)
    if (path / LABELS).is_file():
        if subset is not None:
            raise ValueError(f"subset= is for the published images of ImageNet-C, and {path} was generated.")
        return load_cifar_c(path, corruption, severity, name="imagenet-c")
    for parent in (path, *(path / group for group in corruptions.GROUPS)):
        folder = parent / corruption / str(severity)
        if folder.is_dir():
            return load_image_folder(folder, size=224, subset=subset, name=f"imagenet-c/{corruption}/{severity}")
    raise FileNotFoundError(f"no {corruption}/{severity} in {path}.")


def _list_images(root: Path, classes: Sequence[str], shuffle: int | None) -> list[str]:
    """Return the paths of all images below ``root``, with slashes, in a fixed order."""
    files = [
        f"{kind}/{file}"
        for kind in classes
        for file in sorted(_list_files(root / kind))
        if file.lower().endswith(SUFFIXES)
    ]
    if shuffle is not None:
        files = [files[i] for i in np.random.default_rng(shuffle).permutation(len(files))]
    return files


def _list_subset(root: Path, classes: Sequence[str], subset: Sequence[str] | str | Path) -> list[str]:
    """Return the paths of a subset, all of which must exist."""
    lines = read_text(Path(subset)).splitlines() if isinstance(subset, str | Path) else subset
    files = [line.strip() for line in lines if line.strip()]
    outside = {file for file in files if file.split("/")[0] not in classes or ".." in file.split("/")}
    missing = [file for file in files if file in outside or not _is_file(root / file)]
    if missing:
        raise FileNotFoundError(f"{len(missing)} files of the subset are not in {root}; the first is {missing[0]!r}.")
    return files


def _list_files(folder: Path) -> list[str]:
    """Return the paths of all files below a folder, with slashes."""
    return [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]


def _is_file(file: Path) -> bool:
    try:
        return file.is_file()
    except (OSError, ValueError):  # a name that is too long, or that holds a zero byte
        return False
