"""Blurs, zooms and warps as weighted sums of shifted images.

Everything here is multiplications and additions of whole images in a fixed order. That is fast for this benchmark's
short kernels, runs on any device, and gives every image the same bits in any batch, which convolution routines that
choose an algorithm by batch size do not.
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


def pad_indices(size: int, before: int, after: int, mode: str) -> Floats:
    """Return indices into a row of ``size`` pixels that is extended at both ends; modes as in ``numpy.pad``."""
    return np.pad(np.arange(size), (before, after), mode=mode)  # type: ignore[call-overload, no-any-return]


def pad(x: Tensor, rows: int, columns: int, mode: str) -> Tensor:
    """Return images extended by ``rows`` at the top and bottom and ``columns`` at the left and right."""
    row_indices = torch.from_numpy(pad_indices(x.shape[2], rows, rows, mode)).to(x.device)
    column_indices = torch.from_numpy(pad_indices(x.shape[3], columns, columns, mode)).to(x.device)
    return x.index_select(2, row_indices).index_select(3, column_indices)


def correlate(x: Tensor, taps: Sequence[Tap], mode: str) -> Tensor:
    """Return the weighted sum of shifted images; ``mode`` says how images continue beyond their borders."""
    height, width = x.shape[2:]
    taps = [tap for tap in taps if tap[2] > NEGLIGIBLE]
    rows, columns = max(abs(dy) for dy, _, _ in taps), max(abs(dx) for _, dx, _ in taps)
    padded = pad(x, rows, columns, mode) if rows or columns else x
    total = torch.zeros_like(x)
    for dy, dx, weight in taps:
        total += padded[:, :, rows + dy : rows + dy + height, columns + dx : columns + dx + width] * weight
    return total


def gaussian(x: Tensor, sigma: float, mode: str = "edge", truncate: float = 4.0) -> Tensor:
    """Return images blurred by a separable Gaussian that is cut off after ``truncate`` standard deviations."""
    weights = gaussian_weights(sigma, truncate)
    if len(weights) == 1:
        return x
    radius = len(weights) // 2
    taps = [(offset - radius, 0, float(weight)) for offset, weight in enumerate(weights)]
    return correlate(correlate(x, taps, mode), [(dx, dy, weight) for dy, dx, weight in taps], mode)


def gaussian_weights(sigma: float, truncate: float) -> Floats:
    """Return a sampled Gaussian with sum 1; a single 1 where it would not reach the next pixel."""
    radius = int(truncate * sigma + 0.5)
    if radius == 0:
        return np.ones(1)
    weights: Floats = np.exp(-(np.arange(-radius, radius + 1) ** 2) / (2 * sigma**2))
    weights /= weights.sum()
    return weights


def gaussian_matrix(size: int, sigma: float, truncate: float) -> Floats:
    """Return the blur of a row of ``size`` pixels, mirrored at its ends, as a matrix.

    For Gaussians that are wide compared to the row.
    """
    weights = gaussian_weights(sigma, truncate)
    radius = len(weights) // 2
    sources = pad_indices(size, radius, radius, "symmetric")
    matrix = np.zeros((size, size))
    for row in range(size):
        np.add.at(matrix[row], sources[row : row + len(weights)], weights)
    return matrix


def disk(radius: float, alias: float) -> list[Tap]:
    """Return a flat disk with a softened rim, the image of a point through a lens out of focus.

    Where the disk touches the border of its kernel, softening mirrors it there and its sum exceeds 1 by a per cent. The
    published images are brighter by as much, and so are ours.

    Args:
        radius: of the disk, in pixels.
        alias: the standard deviation of the Gaussian that softens the rim.
    """
    reach = 8 if radius <= 8 else math.ceil(radius)
    rim = 1 if radius <= 8 else 2
    offsets = np.arange(-reach, reach + 1)
    flat = (offsets[:, None] ** 2 + offsets[None, :] ** 2 <= radius**2).astype(float)
    soft = np.exp(-(np.arange(-rim, rim + 1) ** 2) / (2 * alias**2))
    soft /= soft.sum()
    padded = np.pad(flat / flat.sum(), rim, mode="reflect")
    kernel = sum(
        soft[i] * soft[j] * padded[i : i + len(offsets), j : j + len(offsets)]
        for i in range(len(soft))
        for j in range(len(soft))
    )
    return [(int(y), int(x), float(kernel[i, j])) for i, y in enumerate(offsets) for j, x in enumerate(offsets)]


def motion(x: Tensor, radius: float, sigma: float, degrees: Tensor) -> Tensor:
    """Return images blurred by half a Gaussian along a line, each image at its own angle.

    One-sided, in whole pixels and with the edge repeated, as in ImageMagick, which the benchmark used.
    """
    length = 2 * math.ceil(radius) + 1
    weights = np.exp(-(np.arange(length) ** 2) / (2 * sigma**2))
    weights /= weights.sum()
    angle = degrees.double().cpu() * (math.pi / 180)
    height, width = x.shape[2:]
    flat = x.flatten(2)
    total = torch.zeros_like(flat)
    for step, weight in enumerate(weights):
        if weight < NEGLIGIBLE:
            break
        dx = (step * angle.cos() - 0.5).ceil().long().to(x.device)
        dy = (step * angle.sin() - 0.5).ceil().long().to(x.device)
        rows = (torch.arange(height, device=x.device) + dy[:, None]).clamp_(0, height - 1)
        columns = (torch.arange(width, device=x.device) + dx[:, None]).clamp_(0, width - 1)
        index = (rows[:, :, None] * width + columns[:, None, :]).view(len(x), 1, -1)
        total += flat.gather(2, index.expand_as(flat)) * float(weight)
    return total.view_as(x)


def zoom(x: Tensor, factor: float) -> Tensor:
    """Return the middle of the images enlarged to their full size, bilinearly, with aligned corner pixels."""
    height, width = x.shape[2:]
    crop_height, crop_width = math.ceil(height / factor), math.ceil(width / factor)
    top, left = (height - crop_height) // 2, (width - crop_width) // 2
    x = x[:, :, top : top + crop_height, left : left + crop_width]
    x = _stretch(x, 2, round(crop_height * factor))
    x = _stretch(x, 3, round(crop_width * factor))
    top, left = (x.shape[2] - height) // 2, (x.shape[3] - width) // 2
    return x[:, :, top : top + height, left : left + width]


def _stretch(x: Tensor, dim: int, size: int) -> Tensor:
    old = x.shape[dim]
    positions = np.arange(size) * ((old - 1) / max(size - 1, 1))
    low = np.floor(positions).astype(np.int64).clip(0, old - 1)
    shape = [1, 1, 1, 1]
    shape[dim] = size
    weight = torch.from_numpy((positions - low).astype(np.float32)).to(x.device).view(shape)
    before = x.index_select(dim, torch.from_numpy(low).to(x.device))
    after = x.index_select(dim, torch.from_numpy((low + 1).clip(0, old - 1)).to(x.device))
    return before * (1 - weight) + after * weight


def sample(x: Tensor, rows: Tensor, columns: Tensor, mode: str) -> Tensor:
    """Return images (N, C, H, W) read at real-valued positions (N, H, W), bilinearly.

    Args:
        x: the images.
        rows: a row position for every pixel of the result.
        columns: a column position likewise.
        mode: how images continue beyond their borders, "reflect" or "symmetric" as in ``numpy.pad``.
    """
    height, width = x.shape[2:]
    low_row, low_column = rows.floor(), columns.floor()
    down, across = (rows - low_row).unsqueeze(1), (columns - low_column).unsqueeze(1)
    flat = x.flatten(2)

    def read(row: Tensor, column: Tensor) -> Tensor:
        index = _reflect(row.long(), height, mode) * width + _reflect(column.long(), width, mode)
        return flat.gather(2, index.view(len(x), 1, -1).expand(-1, x.shape[1], -1)).view(
            len(x), x.shape[1], *rows.shape[1:]
        )

    upper = read(low_row, low_column) * (1 - across) + read(low_row, low_column + 1) * across
    lower = read(low_row + 1, low_column) * (1 - across) + read(low_row + 1, low_column + 1) * across
    return upper * (1 - down) + lower * down


def sample_nearest(labels: Tensor, rows: Tensor, columns: Tensor, mode: str) -> Tensor:
    """Return labels (N, H, W) read at real-valued positions (N, H, W) from the nearest pixel; see ``sample``."""
    height, width = labels.shape[1:]
    row, column = (rows + 0.5).floor().long(), (columns + 0.5).floor().long()
    index = _reflect(row, height, mode) * width + _reflect(column, width, mode)
    return labels.flatten(1).gather(1, index.flatten(1)).view_as(labels)


def reflect_positions(positions: Tensor, size: int) -> Tensor:
    """Return real-valued positions where ``sample`` reads them with the mode "symmetric", in 0 to size − 1."""
    inside = (positions + 0.5).remainder(2 * size)
    return (torch.minimum(inside, 2 * size - inside) - 0.5).clamp(0, size - 1)


def _reflect(index: Tensor, size: int, mode: str) -> Tensor:
    """Return indices mirrored into 0 to size − 1: "reflect" does not repeat the edge pixel, "symmetric" does."""
    if size == 1:
        return torch.zeros_like(index)
    if mode == "reflect":
        index = index.abs().remainder(2 * (size - 1))
        return torch.minimum(index, 2 * (size - 1) - index)
    index = index.remainder(2 * size)
    return torch.minimum(index, 2 * size - 1 - index)
