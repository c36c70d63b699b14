"""The corruptions against scipy, colorsys, Pillow, their definitions and what is known of their statistics."""

from __future__ import annotations

import colorsys
import io
import math

import numpy as np
import pytest
import scipy.ndimage
import scipy.stats
import torch
from PIL import Image

from medbn.data import corruptions
from medbn.data.corruptions import NAMES, SEVERITIES, corrupt, filters, frost_folder, synthetic_frost
from medbn.data.corruptions.base import interpolate
from medbn.data.corruptions.plasma import plasma

from .conftest import photographs

# Under the published constants of these three, damage in the sense of PSNR does not grow with severity: glass gets
# smoother, frost is added to a dimmer image, elastic trades one kind of distortion for another.
NOT_MONOTONE = {"glass_blur", "frost", "elastic_transform"}


def make(images, name, severity, **options):
    return corrupt(images, name, severity, frost="synthetic", **options)


def psnr(a: torch.Tensor, b: torch.Tensor) -> float:
    error = (a.double() - b.double()).square().mean(dim=(1, 2, 3)).clamp(min=1e-9)
    return (10 * torch.log10(255**2 / error)).mean().item()


def flat(value: int = 128, count: int = 40, size: int = 32) -> torch.Tensor:
    return torch.full((count, 3, size, size), value, dtype=torch.uint8)


def test_there_are_the_fifteen():
    assert len(NAMES) == 15
    assert corruptions.available() == list(NAMES)
    assert {corruptions.get(name).group for name in NAMES} == {"noise", "blur", "weather", "digital"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [32, 64])
def test_bytes_of_the_same_shape_that_differ_from_the_image_and_from_other_seeds(name, size):
    images = photographs(size, 4)
    before = images.clone()
    result = make(images, name, 3)
    assert result.dtype == torch.uint8
    assert result.shape == images.shape
    assert torch.equal(images, before)
    assert not torch.equal(result, images)
    random = name not in {"defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression"}
    assert torch.equal(result, make(images, name, 3, seed=1)) is not random


@pytest.mark.parametrize("name", NAMES)
def test_an_image_gets_the_same_bits_alone_in_a_batch_and_twice(name):
    images = photographs(32, 9)
    result = make(images, name, 5)
    assert torch.equal(result, make(images, name, 5))
    assert torch.equal(result[3:5], make(images[3:5], name, 5, first=3))
    assert torch.equal(result[8:], make(images[8:], name, 5, first=8))


@pytest.mark.parametrize("name", NAMES)
def test_many_images_are_worked_on_in_parts_without_a_seam(name, monkeypatch):
    images = photographs(16, 7)
    whole = make(images, name, 4)
    monkeypatch.setattr(corruptions.apply, "_VALUES_AT_ONCE", 2 * images[0].numel())
    assert torch.equal(make(images, name, 4), whole)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(1, 16, 16), (1, 32, 32), (3, 24, 40), (3, 33, 17)])
def test_grey_and_oblong_images(name, shape):
    grey = photographs(64, 3)[:, : shape[0], : shape[1], : shape[2]].contiguous()
    result = make(grey, name, 5)
    assert result.shape == grey.shape
    assert not torch.equal(result, grey)


# Severities 3 and 4 of ImageNet-C's fog have the same strength, and differ in roughness alone.
MONOTONE = [(n, s) for n in NAMES for s in (32, 64, 224) if n not in NOT_MONOTONE and (n, s) != ("fog", 224)]


@pytest.mark.parametrize(("name", "size"), MONOTONE)
def test_damage_grows_with_severity(name, size):
    images = photographs(size)
    quality = [psnr(make(images, name, severity), images) for severity in SEVERITIES]
    assert quality == sorted(quality, reverse=True)
    assert quality[0] > quality[-1] + 1


def test_frost_hides_more_of_the_image_with_severity():
    images = photographs(32)
    shares = []
    for severity in SEVERITIES:
        pair = torch.stack([images.double().flatten(), make(images, "frost", severity).double().flatten()])
        shares.append(torch.corrcoef(pair)[0, 1].item())
    assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize(("severity", "sigma"), [*zip(SEVERITIES, (0.04, 0.06, 0.08, 0.09, 0.10), strict=True)])
def test_gaussian_noise_has_its_standard_deviation_and_mean(severity, sigma):
    noise = make(flat(), "gaussian_noise", severity).double() + 0.5 - 128  # bytes are rounded down
    assert noise.std().item() / 255 == pytest.approx(sigma, rel=0.01)
    assert noise.mean().item() == pytest.approx(0, abs=4 * 255 * sigma / math.sqrt(noise.numel()) + 0.02)


@pytest.mark.parametrize(("severity", "photons"), [*zip(SEVERITIES, (500, 250, 100, 75, 50), strict=True)])
def test_shot_noise_counts_photons(severity, photons):
    for value in (51, 128):
        counts = np.arange(4 * photons)
        chances = scipy.stats.poisson.pmf(counts, photons * value / 255)
        levels = np.minimum(np.floor(np.float32(counts) * np.float32(255 / photons)), 255)  # bytes are rounded down
        mean = (chances * levels).sum()
        spread = math.sqrt((chances * (levels - mean) ** 2).sum())
        result = make(flat(value), "shot_noise", severity).double()
        assert result.mean().item() == pytest.approx(mean, abs=4 * spread / math.sqrt(result.numel()))
        assert result.std().item() == pytest.approx(spread, rel=0.01)


@pytest.mark.parametrize(("severity", "amount"), [*zip(SEVERITIES, (0.01, 0.02, 0.03, 0.05, 0.07), strict=True)])
def test_impulse_noise_replaces_its_share_half_by_white_half_by_black(severity, amount):
    result = make(flat(), "impulse_noise", severity)
    sigma = math.sqrt(amount / result.numel())
    for value in (0, 255):
        assert (result == value).double().mean().item() == pytest.approx(amount / 2, abs=4 * sigma)
    assert ((result == 128) | (result == 0) | (result == 255)).all()


@pytest.mark.parametrize(("severity", "share"), [*zip(SEVERITIES, (0.75, 0.5, 0.4, 0.3, 0.15), strict=True)])
def test_contrast_scales_the_deviation_from_each_channels_mean(severity, share):
    images = photographs(32, 5)
    x = images.numpy().astype(float)
    mean = x.mean(axis=(2, 3), keepdims=True)
    expected = np.floor((x - mean) * share + mean)
    assert np.abs(make(images, "contrast", severity).numpy() - expected).max() <= 1
    assert (make(images, "contrast", severity).numpy() == expected).mean() > 0.999


@pytest.mark.parametrize(("severity", "more"), [*zip(SEVERITIES, (0.05, 0.1, 0.15, 0.2, 0.3), strict=True)])
def test_brightness_raises_the_value_of_hsv(severity, more):
    images = photographs(32, 2)[:, :, ::4, ::4].contiguous()
    images[0, :, 0, 0] = 0
    pixels = images.permute(0, 2, 3, 1).reshape(-1, 3).tolist()
    expected = []
    for red, green, blue in pixels:
        hue, saturation, value = colorsys.rgb_to_hsv(red / 255, green / 255, blue / 255)
        expected.append([255 * c for c in colorsys.hsv_to_rgb(hue, saturation, min(value + more, 1))])
    result = make(images, "brightness", severity).permute(0, 2, 3, 1).reshape(-1, 3).numpy()
    assert np.abs(result + 0.5 - np.array(expected)).max() <= 0.501


@pytest.mark.parametrize(("severity", "quality"), [*zip(SEVERITIES, (80, 65, 58, 50, 40), strict=True)])
def test_jpeg_is_what_a_jpeg_file_holds(severity, quality):
    images = photographs(32, 3)
    for image, result in zip(images, make(images, "jpeg_compression", severity), strict=True):
        file = io.BytesIO()
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(file, "JPEG", quality=quality)
        assert np.array_equal(np.asarray(Image.open(file)), result.permute(1, 2, 0).numpy())


def test_pixelate_makes_blocks_at_224():
    result = make(photographs(224, 2), "pixelate", 5)  # a quarter of the pixels: blocks of 4 × 4
    assert torch.equal(result, result[:, :, ::4, ::4].repeat_interleave(4, 2).repeat_interleave(4, 3))


def test_blurs_keep_a_flat_image_and_pixelate_does_too():
    for name in ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "pixelate", "elastic_transform"):
        for value in (1, 100, 128, 255):
            for severity in SEVERITIES:
                assert make(flat(value, 3), name, severity).unique().tolist() == [value], (name, severity)


@pytest.mark.parametrize("sigma", [0.05, 0.25, 0.4, 1.5])
def test_gaussian_blur_is_scipys(sigma):
    x = photographs(32, 2).float()
    expected = scipy.ndimage.gaussian_filter(x.numpy().astype(float), (0, 0, sigma, sigma), mode="nearest", truncate=4)
    np.testing.assert_allclose(filters.gaussian(x, sigma).numpy(), expected, atol=1e-2)
    u = np.random.default_rng(0).random((32, 20))
    across, down = (filters.gaussian_matrix(n, 10 * sigma, 3.0) for n in (20, 32))
    expected = scipy.ndimage.gaussian_filter(u, 10 * sigma, mode="reflect", truncate=3)
    np.testing.assert_allclose(down @ u @ across.T, expected, atol=1e-9)


@pytest.mark.parametrize("level", corruptions.get("defocus_blur").small + corruptions.get("defocus_blur").large)
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
    expected = [scipy.ndimage.correlate(channel, kernel, mode="mirror") for channel in x[0].numpy().astype(float)]
    np.testing.assert_allclose(filters.correlate(x, taps, "reflect")[0].numpy(), np.stack(expected), atol=0.05)


@pytest.mark.parametrize("factor", [1.0, 1.01, 1.13, 1.26, 2.25])
def test_zoom_is_scipys(factor):
    x = photographs(32, 1)[0].numpy().astype(float)
    size = math.ceil(32 / factor)
    start = (32 - size) // 2
    large = scipy.ndimage.zoom(x[:, start : start + size, start : start + size], (1, factor, factor), order=1)
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
            places = [rows[image], columns[image]]
            expected = scipy.ndimage.map_coordinates(x[image, channel], places, order=1, mode=scipys)
            np.testing.assert_allclose(result[image, channel], expected, atol=1e-9)


@pytest.mark.parametrize("degrees", [0.0, 20.0, -37.0, 45.0, -90.0, -120.0])
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


def test_glass_takes_values_of_near_pixels_only():
    # Without blur (σ .05 does not reach the next pixel), severity 1 moves each pixel by one at most.
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(3, 3, 16, 16).contiguous()
    result = make(images, "glass_blur", 1)[:, 0]
    moved = 0
    for row in range(16):
        for column in range(16):
            old_row, old_column = result[:, row, column] // 16, result[:, row, column] % 16
            assert ((row - old_row.int()).abs() <= 1).all()
            assert ((column - old_column.int()).abs() <= 1).all()
            moved += int((result[:, row, column] != images[0, 0, row, column]).sum())
    assert 0.5 < moved / (3 * 13 * 13) < 0.9


def test_fog_keeps_the_brightest_value_and_adds_a_cloud():
    images = flat(0, 2)
    images[:, :, 4, 4] = 255
    result = make(images, "fog", 5)  # (x + 1.5 · cloud) / (1 + 1.5) where the brightest value is 1
    assert result.max().item() <= 255
    cloud = result[0, 0].double() / 255 * 2.5 / 1.5
    assert cloud.flatten().sort().values[-2].item() <= 1.01
    assert torch.equal(result[:, 0, :4], result[:, 2, :4])


@pytest.mark.parametrize("side", [16, 32, 128])
def test_plasma_fills_the_unit_interval_and_decay_smooths_it(side):
    rough, smooth = (plasma(np.random.default_rng(0), side, decay) for decay in (1.2, 3.0))
    for field in (rough, smooth):
        assert field.min() == 0
        assert field.max() == 1
        assert field.shape == (side, side)
    assert np.abs(np.diff(rough, axis=0)).mean() > 2 * np.abs(np.diff(smooth, axis=0)).mean()


def test_elastic_without_displacement_is_an_affine_map():
    # Severity 1 has no displacement, so a linear ramp stays one away from the mirrored borders.
    ramp = (torch.arange(32) * 7).to(torch.uint8).view(1, 1, 1, 32).expand(4, 3, 32, 32).contiguous()
    middle = make(ramp, "elastic_transform", 1)[:, 0, 12:20, 12:20].double()
    second = middle.diff(n=2, dim=2).abs().max(), middle.diff(n=2, dim=1).abs().max()
    assert max(second) <= 2  # twice the rounding to bytes


def test_constants_between_the_published_sizes():
    level = corruptions.get("gaussian_noise").level
    assert level(5, 32) == level(5, 16) == (0.10,)
    assert level(5, 224) == level(5, 500) == (0.38,)
    middle = round(math.sqrt(32 * 224))
    assert level(5, middle)[0] == pytest.approx(0.24, abs=0.001)
    assert interpolate((0.0, 1.0), (1.0, 1.0), 64)[1] == 1.0


def test_frost_from_photographs(frost_photographs, monkeypatch):
    images = photographs(32, 6)
    given = corrupt(images, "frost", 5, frost=frost_photographs)
    assert not torch.equal(given, images)
    monkeypatch.setenv("MEDBN_FROST", str(frost_photographs))
    assert torch.equal(corrupt(images, "frost", 5), given)
    large = photographs(224, 2)  # of pictures that are hardly larger
    assert corrupt(large, "frost", 5, frost=frost_photographs).shape == large.shape
    black = corrupt(flat(0, 50), "frost", 5, frost=frost_photographs).double().mean().item()
    pictures = [np.asarray(Image.open(file)).mean() for file in frost_photographs.iterdir()]
    assert black == pytest.approx(0.45 * np.mean(pictures), rel=0.15)


def test_frost_without_photographs_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.delenv("MEDBN_FROST", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match=r"pip install --no-deps imagecorruptions.*synthetic"):
        corrupt(flat(), "frost", 1)
    with pytest.raises(FileNotFoundError, match=r"frost1\.png"):
        frost_folder(tmp_path)


def test_synthetic_frost_is_a_bright_texture():
    texture = synthetic_frost(np.random.default_rng(0), 40, 50)
    assert texture.shape == (3, 40, 50)
    assert 60 < texture.mean() < 200
    assert texture.std() > 15


@pytest.mark.parametrize(
    ("images", "options", "message"),
    [
        (torch.zeros(1, 3, 32, 32), {}, "uint8"),
        (torch.zeros(1, 2, 32, 32, dtype=torch.uint8), {}, "1 or 3"),
        (torch.zeros(3, 32, 32, dtype=torch.uint8), {}, "shape"),
        (torch.zeros(1, 3, 4, 32, dtype=torch.uint8), {}, "at least 8"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), {"severity": 6}, "severity must be"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), {"severity": 0}, "severity must be"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), {"name": "frog"}, "Did you mean 'fog'"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), {"seed": -1}, "must not be negative"),
    ],
)
def test_bad_input(images, options, message):
    with pytest.raises(ValueError, match=message):
        corrupt(images, **{"name": "fog", "severity": 1, **options})


def test_no_images_give_no_images():
    assert make(flat()[:0], "fog", 3).shape == (0, 3, 32, 32)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_the_gpu_gives_the_same_images(name):
    images = photographs(32, 8)
    on_gpu = make(images.cuda(), name, 5)
    assert on_gpu.is_cuda
    difference = (on_gpu.cpu().int() - make(images, name, 5).int()).abs()
    assert difference.max() <= 1
    assert (difference > 0).double().mean() < 1e-3
