"""The embedded default: real handwritten digits that need no download.

The 1,797 digits of scikit-learn's ``load_digits`` (8 × 8 pixels of 17 grey levels), from the test part of "Optical
Recognition of Handwritten Digits", E. Alpaydin and C. Kaynak, UCI Machine Learning Repository, CC BY 4.0. Enlarged to
16 × 16 pixels, bilinearly, in whole numbers so that every machine has the same bytes. The first 1,000 are for training
and the last 797 for testing: the file is ordered by writer, so nearly all of the test part is by other hands.
"""

from __future__ import annotations

from importlib import resources

import numpy as np
import torch
from torch import Tensor

from .dataset import Dataset, of_array

TRAIN = 1000


def digits(split: str = "test") -> Dataset:
    """The digits of one split."""
    with (resources.files(__package__) / "digits.npz").open("rb") as file, np.load(file) as arrays:
        small, labels = torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"])
    part = slice(0, TRAIN) if split == "train" else slice(TRAIN, None)
    images = enlarged(small[part]).unsqueeze(1)
    return of_array("digits", split, [str(digit) for digit in range(10)], images, labels[part], mirrors=False)


def enlarged(small: Tensor) -> Tensor:
    """Grey levels 0 to 16 of (N, 8, 8) pixels as bytes of (N, 16, 16) pixels."""
    x = small.to(torch.int64)
    for dim in (1, 2):
        last = x.shape[dim] - 1
        before = torch.cat([x.narrow(dim, 0, 1), x.narrow(dim, 0, last)], dim)
        after = torch.cat([x.narrow(dim, 1, last), x.narrow(dim, last, 1)], dim)
        x = torch.stack([3 * x + before, 3 * x + after], dim + 1).flatten(dim, dim + 1)
    return ((x * 255 + 128) // 256).to(torch.uint8)  # 16 levels × (4 × 4) weights: 256 is white
