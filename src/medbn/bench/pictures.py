"""Malicious images before and after crafting, as PNG files for the report."""

from __future__ import annotations

import io

import torch
from torch import Tensor

from ..attacks import Outcome

EXAMPLES = 6
"""How many malicious images of a cell's first attacked batch are stored."""


def example_pictures(images: Tensor, outcome: Outcome) -> list[tuple[bytes, bytes]]:
    """Return the first malicious images of a batch as pairs of PNG files: clean, poisoned."""
    malicious = (~outcome.benign).nonzero().flatten()[:EXAMPLES]
    return [(png(images[index]), png(outcome.poisoned[index])) for index in malicious.tolist()]


def png(image: Tensor) -> bytes:
    """Return an image (C, H, W) in [0, 1] as a PNG file."""
    from PIL import Image

    array = (image.detach().clamp(0, 1) * 255).round().to(torch.uint8).cpu().permute(1, 2, 0).numpy()
    file = io.BytesIO()
    Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array).save(file, "PNG")
    return file.getvalue()
