"""Real handwritten digits that ship with the package, so that examples, tests and the demo need no download.

The 1,797 digits of scikit-learn's ``load_digits`` (8 × 8 pixels of 17 grey levels), from the test part of "Optical
Recognition of Handwritten Digits", E. Alpaydin and C. Kaynak, UCI Machine Learning Repository, CC BY 4.0. They are
enlarged to 16 × 16 pixels by bilinear interpolation in integers, so that every machine has the same bytes. The first
1,000 are for training and the last 797 for testing: the file is ordered by writer, so that nearly all test images were
written by other people.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .dataset import Dataset, from_tensors

TRAINING_IMAGES = 1000


def digits(folder: Path | None = None, split: str = "test") -> Dataset:
    """Open one split of the digits; ``folder`` is not used, since the file ships with the package."""
    with (resources.files(__package__) / "digits.npz").open("rb") as file, np.load(file) as arrays:
        small, labels = torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"])
    part = slice(0, TRAINING_IMAGES) if split == "train" else slice(TRAINING_IMAGES, None)
    images = enlarge(small[part]).unsqueeze(1)
    names = [str(digit) for digit in range(10)]
    return from_tensors("digits", split, names, images, labels[part], horizontal_flip=False)


def enlarge(small: Tensor) -> Tensor:
    """Return (N, 8, 8) grey levels from 0 to 16 as (N, 16, 16) bytes, interpolated bilinearly."""
    return ((double(small) * 255 + 128) // 256).to(torch.uint8)  # 16 levels × (4 × 4) weights: 256 is white


def double(images: Tensor) -> Tensor:
    """Return (N, H, W) whole numbers as (N, 2·H, 2·W), interpolated bilinearly, times 16."""
    x = images.to(torch.int64)
    for dim in (1, 2):
        last = x.shape[dim] - 1
        previous = torch.cat([x.narrow(dim, 0, 1), x.narrow(dim, 0, last)], dim)
        following = torch.cat([x.narrow(dim, 1, last), x.narrow(dim, last, 1)], dim)
        # A new pixel lies a quarter of an old pixel from one centre and three quarters from the next.
        x = torch.stack([3 * x + previous, 3 * x + following], dim + 1).flatten(dim, dim + 1)
    return x
