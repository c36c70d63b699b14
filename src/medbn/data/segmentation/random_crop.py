"""Random crops for training on segmentation: an image and its labels are scaled, cropped and flipped alike."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .dataset import IGNORE


def random_crop(
    image: Tensor,
    labels: Tensor,
    size: tuple[int, int],
    generator: torch.Generator,
    *,
    scale: tuple[float, float] = (0.5, 2.0),
    flip: bool = True,
    fill: int = 128,
) -> tuple[Tensor, Tensor]:
    """Return a random crop of a scaled image and the same crop of its labels, flipped half of the time.

    The part that becomes the crop is cut out first and scaled then: images bilinearly (with antialiasing where they
    shrink), labels by nearest neighbour. A crop that is larger than the scaled image is padded at a random place.

    Args:
        image: uint8 (C, H, W), on any device.
        labels: int64 or uint8 (H, W).
        size: height and width of the crop.
        generator: on the CPU; the only source of randomness.
        scale: the smallest and the largest factor; drawn so that its logarithm is uniform.
        flip: whether to flip half of the crops horizontally; ``dataset.horizontal_flip`` says where that is right.
        fill: the value of padded pixels in the image; their label is ``IGNORE``.

    >>> image, labels = torch.zeros(3, 64, 96, dtype=torch.uint8), torch.zeros(64, 96, dtype=torch.int64)
    >>> crop, crop_labels = random_crop(image, labels, (48, 48), torch.Generator().manual_seed(0))
    >>> crop.shape, crop_labels.shape
    (torch.Size([3, 48, 48]), torch.Size([48, 48]))
    """
    if image.dtype != torch.uint8 or image.dim() != 3 or labels.shape != image.shape[1:]:
        raise ValueError(
            f"expected an image uint8 (C, H, W) and labels (H, W), got {image.dtype} of shape {tuple(image.shape)} and"
            f" labels of shape {tuple(labels.shape)}."
        )
    if min(size) < 1 or not 0 < scale[0] <= scale[1]:
        raise ValueError(f"size must be positive and scale two factors above 0 in order, got {size} and {scale}.")
    draw = torch.rand(6, generator=generator, dtype=torch.float64).tolist()
    factor = scale[0] * (scale[1] / scale[0]) ** draw[0]
    (top, rows, inner_height), (left, columns, inner_width) = (
        _cut(length, wanted, factor, position)
        for length, wanted, position in zip(image.shape[1:], size, draw[1:3], strict=True)
    )
    image = image[:, top : top + rows, left : left + columns]
    labels = labels[top : top + rows, left : left + columns]
    if (rows, columns) != (inner_height, inner_width):
        inner = (inner_height, inner_width)
        resized = F.interpolate(image[None].float(), inner, mode="bilinear", antialias=True, align_corners=False)
        image = resized[0].round().clamp(0, 255).to(torch.uint8)
        # "nearest-exact" reads at the centres of pixels, as "bilinear" does; "nearest" would shift labels.
        labels = F.interpolate(labels[None, None].float(), inner, mode="nearest-exact")[0, 0].to(labels.dtype)
    if flip and draw[3] < 0.5:
        image, labels = image.flip(2), labels.flip(1)
    above = int(draw[4] * (size[0] - inner_height + 1))
    before = int(draw[5] * (size[1] - inner_width + 1))
    padding = (before, size[1] - inner_width - before, above, size[0] - inner_height - above)
    return F.pad(image, padding, value=fill), F.pad(labels, padding, value=IGNORE)


def _cut(length: int, wanted: int, factor: float, position: float) -> tuple[int, int, int]:
    """Return where to cut along one side: the first pixel, how many, and how many they become."""
    cut = min(length, max(1, round(wanted / factor)))
    inner = wanted if cut < length else min(wanted, max(1, round(length * factor)))
    return int(position * (length - cut + 1)), cut, inner
