"""Blurs, zooms and warps as sums of shifted images.

Everything here is multiplications and additions of whole images, one after the other. That is quick for the short
kernels of this benchmark, runs on any device, and gives every image the same bits in any batch, which convolution
routines that choose an algorithm by batch size do not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .base import Floats

Tap = tuple[int, int, float]
"""Row offset, column offset, weight."""

NEGLIGIBLE = 1e-9  # of 255: far below the rounding to a byte


def border(size: int, before: int, after: int, mode: str) -> Floats:
    """Indices into a row of ``size`` pixels, extended at both ends; modes as in ``numpy.pad``."""
    return np.pad(np.arange(size), (before, after), mode=mode)  # type: ignore[call-overload, no-any-return]


def padded(x: Tensor, rows: int, columns: int, mode: str) -> Tensor:
    """Images extended by ``rows`` and ``columns`` on every side."""
    down = torch.from_numpy(border(x.shape[2], rows, rows, mode)).to(x.device)
    across = torch.from_numpy(border(x.shape[3], columns, columns, mode)).to(x.device)
    return x.index_select(2, down).index_select(3, across)


def correlate(x: Tensor, taps: Sequence[Tap], mode: str) -> Tensor:
    """The weighted sum of shifted images."""
    height, width = x.shape[2:]
    taps = [tap for tap in taps if tap[2] > NEGLIGIBLE]
    rows, columns = max(abs(dy) for dy, _, _ in taps), max(abs(dx) for _, dx, _ in taps)
    wide = padded(x, rows, columns, mode) if rows or columns else x
    total = torch.zeros_like(x)
    for dy, dx, weight in taps:
        total += wide[:, :, rows + dy : rows + dy + height, columns + dx : columns + dx + width] * weight
    return total


def gaussian(x: Tensor, sigma: float, mode: str = "edge", truncate: float = 4.0) -> Tensor:
    """A separable Gaussian blur, cut off after ``truncate`` standard deviations."""
    weights = gaussian_weights(sigma, truncate)
    if len(weights) == 1:
        return x
    radius = len(weights) // 2
    taps = [(offset - radius, 0, float(weight)) for offset, weight in enumerate(weights)]
    return correlate(correlate(x, taps, mode), [(dx, dy, weight) for dy, dx, weight in taps], mode)


def gaussian_weights(sigma: float, truncate: float) -> Floats:
    """A sampled Gaussian, normalised; a single 1 where it would not reach the next pixel."""
    radius = int(truncate * sigma + 0.5)
    if radius == 0:
        return np.ones(1)
    weights: Floats = np.exp(-(np.arange(-radius, radius + 1) ** 2) / (2 * sigma**2))
    weights /= weights.sum()
    return weights


def gaussian_matrix(size: int, sigma: float, truncate: float) -> Floats:
    """The blur of a row of ``size`` pixels, mirrored at its ends, as a matrix: for wide Gaussians on few pixels."""
    weights = gaussian_weights(sigma, truncate)
    radius = len(weights) // 2
    sources = border(size, radius, radius, "symmetric")
    matrix = np.zeros((size, size))
    for row in range(size):
        np.add.at(matrix[row], sources[row : row + len(weights)], weights)
    return matrix


def disk(radius: float, alias: float) -> list[Tap]:
    """A flat disk with softened rim: what a lens out of focus makes of a point.

    Where the disk touches the border of its kernel, softening mirrors it there and its sum exceeds 1 by a per cent. The
    published images have been brightened so, and ours are.
    """
    reach = 8 if radius <= 8 else math.ceil(radius)
    rim = 1 if radius <= 8 else 2
    offsets = np.arange(-reach, reach + 1)
    flat = (offsets[:, None] ** 2 + offsets[None, :] ** 2 <= radius**2).astype(float)
    soft = np.exp(-(np.arange(-rim, rim + 1) ** 2) / (2 * alias**2))
    soft /= soft.sum()
    wide = np.pad(flat / flat.sum(), rim, mode="reflect")
    kernel = sum(
        soft[i] * soft[j] * wide[i : i + len(offsets), j : j + len(offsets)]
        for i in range(len(soft))
        for j in range(len(soft))
    )
    return [(int(y), int(x), float(kernel[i, j])) for i, y in enumerate(offsets) for j, x in enumerate(offsets)]


def motion(x: Tensor, radius: float, sigma: float, degrees: Tensor) -> Tensor:
    """A trail behind every pixel: half a Gaussian along a line, each image at its own angle.

    One-sided, in whole pixels and with the edge repeated, as ImageMagick does it, with which the benchmark was made.
    """
    width = 2 * math.ceil(radius) + 1
    weights = np.exp(-(np.arange(width) ** 2) / (2 * sigma**2))
    weights /= weights.sum()
    angle = degrees.double().cpu() * (math.pi / 180)
    height, length = x.shape[2:]
    flat = x.flatten(2)
    total = torch.zeros_like(flat)
    for step, weight in enumerate(weights):
        if weight < NEGLIGIBLE:
            break
        across = (step * angle.cos() - 0.5).ceil().long().to(x.device)
        down = (step * angle.sin() - 0.5).ceil().long().to(x.device)
        rows = (torch.arange(height, device=x.device) + down[:, None]).clamp_(0, height - 1)
        columns = (torch.arange(length, device=x.device) + across[:, None]).clamp_(0, length - 1)
        index = (rows[:, :, None] * length + columns[:, None, :]).view(len(x), 1, -1)
        total += flat.gather(2, index.expand_as(flat)) * float(weight)
    return total.view_as(x)


def zoom(x: Tensor, factor: float) -> Tensor:
    """The middle of the images enlarged to their full size, bilinearly, corners on corners."""
    height, width = x.shape[2:]
    tall, wide = math.ceil(height / factor), math.ceil(width / factor)
    top, left = (height - tall) // 2, (width - wide) // 2
    x = x[:, :, top : top + tall, left : left + wide]
    x = _stretched(x, 2, round(tall * factor))
    x = _stretched(x, 3, round(wide * factor))
    top, left = (x.shape[2] - height) // 2, (x.shape[3] - width) // 2
    return x[:, :, top : top + height, left : left + width]


def _stretched(x: Tensor, dim: int, size: int) -> Tensor:
    old = x.shape[dim]
    places = np.arange(size) * ((old - 1) / max(size - 1, 1))
    low = np.floor(places).astype(np.int64).clip(0, old - 1)
    shape = [1, 1, 1, 1]
    shape[dim] = size
    weight = torch.from_numpy((places - low).astype(np.float32)).to(x.device).view(shape)
    before = x.index_select(dim, torch.from_numpy(low).to(x.device))
    after = x.index_select(dim, torch.from_numpy((low + 1).clip(0, old - 1)).to(x.device))
    return before * (1 - weight) + after * weight


def sample(x: Tensor, rows: Tensor, columns: Tensor, mode: str) -> Tensor:
    """Images (N, C, H, W) read at real-valued positions (N, H, W), bilinearly; borders as in ``padded``."""
    height, width = x.shape[2:]
    low_row, low_column = rows.floor(), columns.floor()
    down, across = (rows - low_row).unsqueeze(1), (columns - low_column).unsqueeze(1)
    flat = x.flatten(2)

    def read(row: Tensor, column: Tensor) -> Tensor:
        index = _folded(row.long(), height, mode) * width + _folded(column.long(), width, mode)
        return flat.gather(2, index.view(len(x), 1, -1).expand(-1, x.shape[1], -1)).view(
            len(x), x.shape[1], *rows.shape[1:]
        )

    upper = read(low_row, low_column) * (1 - across) + read(low_row, low_column + 1) * across
    lower = read(low_row + 1, low_column) * (1 - across) + read(low_row + 1, low_column + 1) * across
    return upper * (1 - down) + lower * down


def _folded(index: Tensor, size: int, mode: str) -> Tensor:
    """Positions outside mirrored back in: ``reflect`` leaves the edge out, ``symmetric`` repeats it."""
    if size == 1:
        return torch.zeros_like(index)
    if mode == "reflect":
        index = index.abs().remainder(2 * (size - 1))
        return torch.minimum(index, 2 * (size - 1) - index)
    index = index.remainder(2 * size)
    return torch.minimum(index, 2 * size - 1 - index)
