"""Pictures of attacked batches for the report, as PNG files.

A classification cell has malicious images before and after crafting. A segmentation cell has strips: the first benign
image with its labels and predictions, and a malicious image.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..attacks import Outcome
from ..confusion import IGNORE
from .store import Store

EXAMPLES = 6
"""How many malicious images of a cell's first attacked batch are stored."""
STRIPS = 2
"""Of how many attacked batches of a segmentation cell pictures are stored."""
LONGEST_SIDE = 256
"""Pixels of a picture in a strip, at most: a store is meant to stay small."""


class Strip(NamedTuple):
    """Pictures of one attacked batch of a segmentation cell, PNG files. Classes have the colours of the dataset."""

    image: bytes
    """The first image of the batch, which is benign and where a pixel is targeted."""
    truth: bytes
    """Its labels; black where a pixel does not count."""
    without: bytes
    """Its prediction without attack."""
    under: bytes
    """Its prediction under attack."""
    clean: bytes
    """The first malicious image before it was crafted."""
    malicious: bytes
    """The same after."""


def example_pictures(images: Tensor, outcome: Outcome) -> list[tuple[bytes, bytes]]:
    """Return the first malicious images of a batch as pairs of PNG files: clean, poisoned."""
    malicious = (~outcome.benign).nonzero().flatten()[:EXAMPLES]
    return [(png(images[index]), png(outcome.poisoned[index])) for index in malicious.tolist()]


def strip_pictures(images: Tensor, outcome: Outcome, colours: Sequence[Sequence[int]]) -> list[tuple[bytes, bytes]]:
    """Return the pictures of a Strip as pairs, which is how a store keeps them."""
    benign, malicious = (int(mask.nonzero()[0]) for mask in (outcome.benign, ~outcome.benign))
    classes = [
        outcome.labels[benign],
        outcome.clean[benign].argmax(dim=0),
        outcome.attacked[benign].argmax(dim=0),
    ]
    truth, without, under = (palette_png(each, colours) for each in classes)
    photographs = (images[benign], images[malicious], outcome.poisoned[malicious])
    image, clean, poisoned = (png(_shrink(each)) for each in photographs)
    return [(image, truth), (without, under), (clean, poisoned)]


def read_strips(store: Store, key: str) -> list[Strip]:
    """Return the strips of a segmentation cell, one per batch of which pictures are stored."""
    files = [file for pair in store.examples(key) for file in pair]
    return [Strip(*files[start : start + 6]) for start in range(0, len(files) - 5, 6)]


def png(image: Tensor) -> bytes:
    """Return an image (C, H, W) in [0, 1] as a PNG file."""
    from PIL import Image

    array = (image.detach().clamp(0, 1) * 255).round().to(torch.uint8).cpu().permute(1, 2, 0).numpy()
    file = io.BytesIO()
    Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array).save(file, "PNG")
    return file.getvalue()


def palette_png(classes: Tensor, colours: Sequence[Sequence[int]]) -> bytes:
    """Return class indices (H, W) as a PNG file in the colours of the classes; black where a pixel does not count."""
    from PIL import Image

    shrunk = _shrink(classes.unsqueeze(0).float(), mode="nearest").squeeze(0)
    picture = Image.fromarray(shrunk.to(torch.uint8).cpu().numpy())
    palette = [0] * (3 * (IGNORE + 1))
    for index, colour in enumerate(colours):
        palette[3 * index : 3 * index + 3] = colour
    picture.putpalette(palette)  # turns grey values into indices of colours
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def _shrink(image: Tensor, mode: str = "area") -> Tensor:
    """Return an image (C, H, W) whose longer side has at most ``LONGEST_SIDE`` pixels."""
    scale = LONGEST_SIDE / max(image.shape[1:])
    if scale >= 1:
        return image
    size = [max(1, round(side * scale)) for side in image.shape[1:]]
    return F.interpolate(image.float().cpu().unsqueeze(0), size, mode=mode).squeeze(0)
