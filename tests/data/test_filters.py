"""Blurs, zooms and warps against SciPy and their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from medbn.data import corruptions
from medbn.data.corruptions import filters

from .images import photographs

ndimage = pytest.importorskip("scipy.ndimage")


@pytest.mark.parametrize("sigma", [0.05, 0.4, 1.5])
def test_gaussian_blur_is_scipys(sigma):
    x = photographs(32, 2).float()
    expected = ndimage.gaussian_filter(x.numpy().astype(float), (0, 0, sigma, sigma), mode="nearest", truncate=4)
    np.testing.assert_allclose(filters.gaussian(x, sigma).numpy(), expected, atol=1e-2)
    field = np.random.default_rng(0).random((32, 20))
    blur_columns, blur_rows = (filters.gaussian_matrix(n, 10 * sigma, 3.0) for n in (20, 32))
    expected = ndimage.gaussian_filter(field, 10 * sigma, mode="reflect", truncate=3)
    np.testing.assert_allclose(blur_rows @ field @ blur_columns.T, expected, atol=1e-9)


DEFOCUS = corruptions.get("defocus_blur")


@pytest.mark.parametrize("level", [*DEFOCUS.small, *DEFOCUS.large])
def test_defocus_is_the_correlation_with_its_kernel(level):
    x = photographs(64, 1).float()
    taps = filters.disk(*level)
    reach = max(abs(dy) for dy, _, _ in taps)
    kernel = np.zeros((2 * reach + 1, 2 * reach + 1))
    for dy, dx, weight in taps:
        kernel[reach + dy, reach + dx] = weight
    assert kernel.sum() == pytest.approx(1, abs=1e-6 if level[0] < 8 else 0.015)
    assert np.allclose(kernel, kernel.T)
    assert np.allclose(kernel, kernel[::-1])
    expected = [ndimage.correlate(channel, kernel, mode="mirror") for channel in x[0].numpy().astype(float)]
    np.testing.assert_allclose(filters.correlate(x, taps, "reflect")[0].numpy(), np.stack(expected), atol=0.05)


@pytest.mark.parametrize("factor", [1.0, 1.13, 2.25])
def test_zoom_is_scipys(factor):
    x = photographs(32, 1)[0].numpy().astype(float)
    size = math.ceil(32 / factor)
    start = (32 - size) // 2
    large = ndimage.zoom(x[:, start : start + size, start : start + size], (1, factor, factor), order=1)
    trim = (large.shape[1] - 32) // 2
    result = filters.zoom(torch.from_numpy(x).float().unsqueeze(0), factor)[0].numpy()
    np.testing.assert_allclose(result, large[:, trim : trim + 32, trim : trim + 32], atol=1e-2)


@pytest.mark.parametrize(("mode", "scipys"), [("reflect", "mirror"), ("symmetric", "reflect")])
def test_sampling_is_scipys_beyond_the_borders_too(mode, scipys):
    rng = np.random.default_rng(0)
    x = rng.random((2, 3, 12, 9))
    rows, columns = rng.uniform(-30, 40, (2, 12, 9)), rng.uniform(-30, 40, (2, 12, 9))
    result = filters.sample(*(torch.from_numpy(a) for a in (x, rows, columns)), mode).numpy()
    for image in range(2):
        for channel in range(3):
            positions = [rows[image], columns[image]]
            expected = ndimage.map_coordinates(x[image, channel], positions, order=1, mode=scipys)
            np.testing.assert_allclose(result[image, channel], expected, atol=1e-9)


@pytest.mark.parametrize("degrees", [0.0, 20.0, -37.0, -90.0, -120.0])
def test_motion_blur_is_a_one_sided_gaussian_along_a_line(degrees):
    x = photographs(16, 1).float()
    radius, sigma = 4, 1.5
    weights = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(2 * radius + 1)]
    expected = torch.zeros(3, 16, 16, dtype=torch.float64)
    for i, weight in enumerate(weights):
        dx = math.ceil(i * math.cos(math.radians(degrees)) - 0.5)
        dy = math.ceil(i * math.sin(math.radians(degrees)) - 0.5)
        for row in range(16):
            for column in range(16):
                source = x[0, :, min(max(row + dy, 0), 15), min(max(column + dx, 0), 15)]
                expected[:, row, column] += source.double() * weight / sum(weights)
    result = filters.motion(x, radius, sigma, torch.tensor([degrees]))[0]
    torch.testing.assert_close(result.double(), expected, atol=0.01, rtol=0)
