"""Trees of image files: one folder per class, as ImageNet-C and most people's own data are kept."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from . import corruptions
from .dataset import Dataset, Indices, digest

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff")


def folder(
    path: str | Path,
    *,
    size: int | tuple[int, int] | None = None,
    subset: Sequence[str] | str | Path | None = None,
    shuffle: int | None = 0,
    name: str | None = None,
    split: str = "test",
    workers: int | None = None,
) -> Dataset:
    """A folder of class folders of images, all of them, decoded while they are needed.

    Classes are the folders in alphabetical order. Images that are not of ``size`` are scaled so that their shorter side
    is 8/7 of it and cut in the middle (256 → 224, as for ImageNet); by default ``size`` is that of the first image. The
    order is a fixed shuffle, since a stream sorted by class is none that anybody serves; ``shuffle=None`` sorts.
    A ``subset`` is an explicit list of paths below the folder, or a text file with one per line, in that order.
    """
    root = Path(path)
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {root}.")
    classes = tuple(
        sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
    )
    if not classes:
        raise ValueError(f"{root} has no class folders: expected {root.name}/CLASS/IMAGE.")
    if subset is None:
        files = [
            f"{kind}/{file}"
            for kind in classes
            for file in sorted(_below(root / kind))
            if file.lower().endswith(SUFFIXES)
        ]
        if shuffle is not None:
            files = [files[i] for i in np.random.default_rng(shuffle).permutation(len(files))]
    else:
        lines = Path(subset).read_text().splitlines() if isinstance(subset, str | Path) else subset
        files = [line.strip() for line in lines if line.strip()]
        missing = [file for file in files if file.split("/")[0] not in classes or not (root / file).is_file()]
        if missing:
            raise FileNotFoundError(
                f"{len(missing)} files of the subset are not in {root}, the first being {missing[0]!r}."
            )
    if not files:
        raise ValueError(f"no images in {root}: expected files that end in {', '.join(SUFFIXES)}.")
    height, width = (size, size) if isinstance(size, int) else size or _size_of(root / files[0])
    if min(height, width) < 1:
        raise ValueError(f"size must be at least 1, got {size}.")
    numbers = {kind: number for number, kind in enumerate(classes)}
    labels = torch.tensor([numbers[file.split("/")[0]] for file in files])
    workers = workers or min(8, os.cpu_count() or 1)

    def read(some: Indices) -> Tensor:
        with ThreadPoolExecutor(workers, thread_name_prefix="medbn-decode") as pool:
            pictures = list(pool.map(lambda i: decoded(root / files[i], height, width), some))
        if not pictures:
            return torch.empty(0, 3, height, width, dtype=torch.uint8)
        return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()

    def identify() -> str:
        with ThreadPoolExecutor(workers, thread_name_prefix="medbn-decode") as pool:
            contents = list(pool.map(lambda file: digest((root / file).read_bytes()), files))
        return digest(f"{height}x{width}", "\n".join(contents), labels.numpy(), "\n".join(classes))

    return Dataset(name or root.name, split, classes, labels, (3, height, width), read, identify)


def imagenet_c(path: Path, corruption: str, severity: int, subset: Sequence[str] | str | Path | None = None) -> Dataset:
    """One corruption at one severity of ImageNet-C, all 50,000 images unless a subset is listed."""
    corruptions.get(corruption)
    for place in (path, *(path / group for group in ("noise", "blur", "weather", "digital"))):
        found = place / corruption / str(severity)
        if found.is_dir():
            return folder(found, size=224, subset=subset, name=f"imagenet-c/{corruption}/{severity}")
    raise FileNotFoundError(f"no {corruption}/{severity} in {path}.")


def decoded(file: Path, height: int, width: int) -> np.ndarray:
    """One image as (H, W, 3) bytes."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as opened:
            image = opened.convert("RGB")
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError) as error:
        raise ValueError(f"{file} is not a readable image: {error}") from None
    if image.size != (width, height):
        scale = 8 / 7 * max(height / image.height, width / image.width)
        wide, tall = max(width, round(image.width * scale)), max(height, round(image.height * scale))
        image = image.resize((wide, tall), Image.Resampling.BILINEAR)
        left, top = (wide - width) // 2, (tall - height) // 2
        image = image.crop((left, top, left + width, top + height))
    return np.asarray(image)


def _below(folder: Path) -> list[str]:
    """All files below a folder, as paths with slashes."""
    return [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]


def _size_of(file: Path) -> tuple[int, int]:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            return image.height, image.width
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError) as error:
        raise ValueError(f"{file} is not a readable image: {error}") from None
