"""Random crops for training on segmentation: images and their labels are scaled, cropped and flipped alike."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .dataset import IGNORE


class Side(NamedTuple):
    """Where crops are cut along one side of their images; each a tensor ``(B,)`` of whole numbers."""

    first: Tensor
    """The first pixel that is cut out."""
    cut: Tensor
    """How many pixels are cut out."""
    inner: Tensor
    """How many pixels they become."""
    before: Tensor
    """How many pixels of the crop are padding before them."""
    flip: Tensor
    """1 where they are in reverse order."""


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
    height, width = image.shape[1:]
    places = draw_crops(1, (height, width), size, generator, scale=scale, flip=flip).to(image.device)
    crops, crop_labels = cut_crops(image[None], labels[None], places, size, fill=fill)
    return crops[0], crop_labels[0]


def draw_crops(
    count: int,
    size: tuple[int, int],
    crop: tuple[int, int],
    generator: torch.Generator,
    *,
    scale: tuple[float, float] = (0.5, 2.0),
    flip: bool = True,
) -> Tensor:
    """Return where random crops are cut, ``(count, 2, 5)``: a ``Side`` for rows and one for columns of each.

    Args:
        count: of crops.
        size: height and width of the images.
        crop: height and width of the crops.
        generator: see ``random_crop``.
        scale: see ``random_crop``.
        flip: see ``random_crop``.
    """
    if min(crop) < 1 or not 0 < scale[0] <= scale[1]:
        raise ValueError(f"size must be positive and scale two factors above 0 in order, got {crop} and {scale}.")
    draws = torch.rand(count, 6, generator=generator, dtype=torch.float64).tolist()
    places = []
    for stretch, top, left, turn, above, before in draws:
        factor = scale[0] * (scale[1] / scale[0]) ** stretch
        rows = _cut(size[0], crop[0], factor, top, above)
        columns = _cut(size[1], crop[1], factor, left, before)
        places.append([[*rows, 0], [*columns, int(flip and turn < 0.5)]])
    return torch.tensor(places, dtype=torch.int64).reshape(count, 2, 5)


def cut_crops(
    images: Tensor, labels: Tensor, places: Tensor, size: tuple[int, int], *, fill: int = 128
) -> tuple[Tensor, Tensor]:
    """Return the crops of a batch of images and of their labels, all of them in a few operations on their device.

    Interpolation is linear along each side, so that a crop is its image between two matrices.

    Args:
        images: uint8 (B, C, H, W).
        labels: int64 or uint8 (B, H, W).
        places: what ``draw_crops`` returned, on the device of the images.
        size: height and width of the crops.
        fill: see ``random_crop``.
    """
    rows, columns = (Side(*places[:, side].unbind(1)) for side in (0, 1))
    (height, width), chosen = size, torch.arange(len(images), device=images.device)[:, None, None]
    across = _interpolation_weights(rows, images.shape[2], height)[:, None]
    along = _interpolation_weights(columns, images.shape[3], width)[:, None]
    values = (across @ images.float() @ along.transpose(2, 3)).round_().clamp_(0, 255)
    row, row_inside = _nearest(rows, images.shape[2], height)
    column, column_inside = _nearest(columns, images.shape[3], width)
    inside = row_inside[:, :, None] & column_inside[:, None]
    crops = torch.where(inside[:, None], values, fill).to(torch.uint8)
    return crops, torch.where(inside, labels[chosen, row[:, :, None], column[:, None]], IGNORE)


def _cut(length: int, wanted: int, factor: float, position: float, padding: float) -> tuple[int, int, int, int]:
    """Return where to cut along one side: the first pixel, how many, how many they become, and the padding before."""
    cut = min(length, max(1, round(wanted / factor)))
    inner = wanted if cut < length else min(wanted, max(1, round(length * factor)))
    return int(position * (length - cut + 1)), cut, inner, int(padding * (wanted - inner + 1))


def _positions(side: Side, wanted: int) -> tuple[Tensor, Side]:
    """Return the position of every pixel of the crops among the scaled ones, and the side in columns."""
    side = Side(*(each[:, None] for each in side))
    position = torch.arange(wanted, device=side.first.device)[None] - side.before
    return torch.where(side.flip == 1, side.inner - 1 - position, position), side


def _nearest(side: Side, length: int, wanted: int) -> tuple[Tensor, Tensor]:
    """Return the pixel at the centre of every pixel of the crops, and whether it is not padding; ``(B, wanted)``."""
    position, side = _positions(side, wanted)
    index = side.first + ((2 * position + 1) * side.cut).div(2 * side.inner, rounding_mode="floor")
    return index.clamp(0, length - 1), (position >= 0) & (position < side.inner)


def _interpolation_weights(side: Side, length: int, wanted: int) -> Tensor:
    """Return the weight of every pixel of the images in every pixel of the crops, ``(B, wanted, length)``.

    A triangle around the centre, as wide as a pixel of the crop is in the image, and at least as one of the image.
    """
    position, side = _positions(side, wanted)
    stretch = side.cut / side.inner
    centre = side.first + (position + 0.5) * stretch
    pixel = torch.arange(length, device=position.device)
    weights = (1 - (pixel + 0.5 - centre[..., None]).abs() / stretch.clamp(min=1)[..., None]).clamp_(min=0)
    weights *= ((pixel >= side.first) & (pixel < side.first + side.cut))[:, None]
    return weights / weights.sum(2, keepdim=True).clamp_(min=1e-6)
