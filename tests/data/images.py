"""Images for the tests of data."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor


@cache
def sample_photographs() -> list[np.ndarray]:
    """Return the two photographs of scikit-learn."""
    return pytest.importorskip("sklearn.datasets").load_sample_images().images


def photographs(size: int, count: int = 24) -> Tensor:
    """Return crops of two real photographs, scaled to a size: uint8 (N, 3, size, size)."""
    image, pictures = pytest.importorskip("PIL.Image"), sample_photographs()
    crops = []
    for number in range(count):
        picture = pictures[number % 2]
        top, left = 16 * (number % 12), 40 * (number % 9)
        crop = image.fromarray(picture[top : top + 224, left : left + 224])
        crops.append(np.asarray(crop.resize((size, size), image.Resampling.LANCZOS)))
    return torch.from_numpy(np.stack(crops)).permute(0, 3, 1, 2).contiguous()


def smooth_images(size: int, count: int) -> Tensor:
    """Return random images with soft edges, which need no other package: uint8 (N, 3, size, size)."""
    coarse = torch.rand(count, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    return (torch.nn.functional.interpolate(coarse, (size, size), mode="bilinear") * 255).to(torch.uint8)


def write_image_folder(
    folder: Path, classes: tuple[str, ...] = ("cat", "ant", "bee"), count: int = 4, size: tuple[int, int] = (20, 24)
) -> Path:
    """Write random images as ``folder/CLASS/NUMBER.png``, and a file that is not an image."""
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for kind in classes:
        (folder / kind).mkdir(parents=True)
        for number in range(count):
            picture = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
            image.fromarray(picture).save(folder / kind / f"{number}.png")
    (folder / classes[0] / "notes.txt").write_text("not an image")
    return folder


def cifar_records(count: int, label_bytes: int, classes: int, seed: int = 0) -> np.ndarray:
    """Return random records in the binary layout of CIFAR."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (count, 3072), dtype=np.uint8)
    labels = rng.integers(0, classes, (count, label_bytes), dtype=np.uint8)
    return np.concatenate([labels, pixels], axis=1)
