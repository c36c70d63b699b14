"""Random changes of training images, drawn from a generator."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def augment(images: Tensor, generator: torch.Generator, *, flip: bool) -> Tensor:
    """Shift every image at random by up to an eighth of its size, with black borders, and flip half of them.

    Args:
        images: (N, C, H, W).
        generator: draws shifts and flips.
        flip: whether images may be flipped horizontally.
    """
    count, _, height, width = images.shape
    pad = max(1, min(height, width) // 8)
    shifts = torch.randint(0, 2 * pad + 1, (2, count, 1), generator=generator).to(images.device)
    flips = torch.randint(0, 2, (count, 1), generator=generator).to(images.device)
    rows = torch.arange(height, device=images.device) + shifts[0]
    columns = torch.arange(width, device=images.device).expand(count, width)
    if flip:
        columns = torch.where(flips > 0, width - 1 - columns, columns)
    columns = columns + shifts[1]
    padded = F.pad(images, [pad] * 4).permute(0, 2, 3, 1)
    indices = torch.arange(count, device=images.device)
    return padded[indices[:, None, None], rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def erase(images: Tensor, side: int, generator: torch.Generator) -> Tensor:
    """Replace a square of every image, at a random place, with the mean colour of the batch (DeVries and Taylor, 2017).

    The centre of the square is inside the image, so that a part of the square may be outside.

    Args:
        images: (N, C, H, W), floating point.
        side: of the square, in pixels.
        generator: draws the places.
    """
    count, _, height, width = images.shape
    places = torch.rand(2, count, 1, generator=generator).to(images.device)
    top = (places[0] * height).floor() - side // 2
    left = (places[1] * width).floor() - side // 2
    rows = torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device)
    inside = ((rows >= top) & (rows < top + side))[:, None, :, None]
    inside = inside & ((columns >= left) & (columns < left + side))[:, None, None, :]
    return torch.where(inside, images.mean(dim=(0, 2, 3), keepdim=True), images)
