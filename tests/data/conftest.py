from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import Tensor


def photographs(size: int, count: int = 24) -> Tensor:
    """Pieces of two real photographs, scaled to a size: uint8 (N, 3, size, size)."""
    pieces = []
    for number in range(count):
        picture = load_sample_images().images[number % 2]
        top, left = 16 * (number % 12), 40 * (number % 9)
        piece = Image.fromarray(picture[top : top + 224, left : left + 224])
        pieces.append(np.asarray(piece.resize((size, size), Image.Resampling.LANCZOS)))
    return torch.from_numpy(np.stack(pieces)).permute(0, 3, 1, 2).contiguous()


@pytest.fixture(scope="session")
def frost_photographs(tmp_path_factory: pytest.TempPathFactory):
    """A folder of five pictures under the names of the photographs of frost."""
    from medbn.data.corruptions import FROST_FILES, synthetic_frost

    folder = tmp_path_factory.mktemp("frost")
    for number, name in enumerate(FROST_FILES):
        texture = synthetic_frost(np.random.default_rng(number), 300, 400 + 20 * number)
        Image.fromarray(texture.transpose(1, 2, 0).astype(np.uint8)).save(folder / name)
    return folder
