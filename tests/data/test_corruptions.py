"""The corruptions against colorsys, Pillow, their definitions and the statistics that they should have."""

from __future__ import annotations

import colorsys
import io
import math

import numpy as np
import pytest
import torch

from medbn.data import corruptions
from medbn.data.corruptions import GROUPS, NAMES, SEVERITIES
from medbn.data.corruptions.base import interpolate

from ..tiers import slow
from .images import photographs

# Under the published constants of these three, damage in the sense of PSNR does not grow with severity: glass gets
# smoother, frost is added to a dimmer image, elastic trades one kind of distortion for another.
NOT_MONOTONE = {"glass_blur", "frost", "elastic_transform"}


def corrupt(images, name, severity, **options):
    return corruptions.corrupt(images, name, severity, frost="synthetic", **options)


def psnr(a: torch.Tensor, b: torch.Tensor) -> float:
    error = (a.double() - b.double()).square().mean(dim=(1, 2, 3)).clamp(min=1e-9)
    return (10 * torch.log10(255**2 / error)).mean().item()


def flat(value: int = 128, count: int = 40, size: int = 32) -> torch.Tensor:
    return torch.full((count, 3, size, size), value, dtype=torch.uint8)


def test_the_fifteen_in_the_order_of_the_papers_tables():
    tables = "gaussian shot impulse defocus glass motion zoom snow frost fog brightness contrast elastic pixelate jpeg"
    assert [name.partition("_")[0] for name in NAMES] == tables.split()
    assert list(dict.fromkeys(corruptions.get(name).group for name in NAMES)) == list(GROUPS)


@pytest.mark.parametrize("name", NAMES)
def test_the_result_is_new_and_depends_on_the_seed_where_it_is_random(name):
    images = photographs(64, 4)
    before = images.clone()
    result = corrupt(images, name, 3)
    assert result.dtype == torch.uint8
    assert result.shape == images.shape
    assert torch.equal(images, before)
    assert not torch.equal(result, images)
    random = name not in {"defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression"}
    assert torch.equal(result, corrupt(images, name, 3, seed=1)) is not random


@pytest.mark.parametrize("name", NAMES)
def test_an_images_bits_do_not_depend_on_its_batch(name, monkeypatch):
    images = photographs(32, 9)
    result = corrupt(images, name, 5)
    assert torch.equal(result, corrupt(images, name, 5))
    assert torch.equal(result[3:5], corrupt(images[3:5], name, 5, first=3))
    assert torch.equal(result[8:], corrupt(images[8:], name, 5, first=8))
    monkeypatch.setattr(corruptions.apply, "_VALUES_AT_ONCE", 2 * images[0].numel())  # several parts
    assert torch.equal(result, corrupt(images, name, 5))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 24, 40), (3, 33, 17)])
def test_grey_and_oblong_images(name, shape):
    images = photographs(64, 3)[:, : shape[0], : shape[1], : shape[2]].contiguous()
    result = corrupt(images, name, 5)
    assert result.shape == images.shape
    assert not torch.equal(result, images)


# Severities 3 and 4 of ImageNet-C's fog have the same strength, and differ in roughness alone.
MONOTONE = [name for name in NAMES if name not in NOT_MONOTONE]
SIZES = [*((name, 32) for name in MONOTONE), *slow(*((name, 224) for name in MONOTONE if name != "fog"))]


@pytest.mark.parametrize(("name", "size"), SIZES)
def test_damage_grows_with_severity(name, size):
    images = photographs(size, 24 if size == 32 else 6)
    quality = [psnr(corrupt(images, name, severity), images) for severity in SEVERITIES]
    assert quality == sorted(quality, reverse=True)
    assert quality[0] > quality[-1] + 1


def test_frost_hides_more_of_the_image_with_severity():
    images = photographs(32)
    correlations = []
    for severity in SEVERITIES:
        pair = torch.stack([images.double().flatten(), corrupt(images, "frost", severity).double().flatten()])
        correlations.append(torch.corrcoef(pair)[0, 1].item())
    assert correlations == sorted(correlations, reverse=True)


def test_gaussian_noise_has_its_standard_deviation_and_mean():
    for severity, sigma in zip(SEVERITIES, (0.04, 0.06, 0.08, 0.09, 0.10), strict=True):
        noise = corrupt(flat(), "gaussian_noise", severity).double() + 0.5 - 128  # bytes are rounded down
        assert noise.std().item() / 255 == pytest.approx(sigma, rel=0.01)
        assert noise.mean().item() == pytest.approx(0, abs=4 * 255 * sigma / math.sqrt(noise.numel()) + 0.02)


def poisson(counts, mean):
    """Return the probabilities of the counts."""
    return np.exp(counts * math.log(mean) - mean - np.array([math.lgamma(count + 1) for count in counts]))


def test_shot_noise_counts_photons():
    for severity, photons in zip(SEVERITIES, (500, 250, 100, 75, 50), strict=True):
        for value in (51, 128):
            counts = np.arange(4 * photons)
            chances = poisson(counts, photons * value / 255)
            levels = np.minimum(np.floor(np.float32(counts) * np.float32(255 / photons)), 255)  # bytes are rounded down
            mean = (chances * levels).sum()
            spread = math.sqrt((chances * (levels - mean) ** 2).sum())
            result = corrupt(flat(value), "shot_noise", severity).double()
            assert result.mean().item() == pytest.approx(mean, abs=4 * spread / math.sqrt(result.numel()))
            assert result.std().item() == pytest.approx(spread, rel=0.01)


def test_impulse_noise_replaces_a_fraction_half_by_white_half_by_black():
    for severity, amount in zip(SEVERITIES, (0.01, 0.02, 0.03, 0.05, 0.07), strict=True):
        result = corrupt(flat(), "impulse_noise", severity)
        sigma = math.sqrt(amount / result.numel())
        for value in (0, 255):
            assert (result == value).double().mean().item() == pytest.approx(amount / 2, abs=4 * sigma)
        assert ((result == 128) | (result == 0) | (result == 255)).all()


def test_contrast_scales_the_deviation_from_each_channels_mean():
    for severity, factor in zip(SEVERITIES, (0.75, 0.5, 0.4, 0.3, 0.15), strict=True):
        images = photographs(32, 5)
        x = images.numpy().astype(float)
        mean = x.mean(axis=(2, 3), keepdims=True)
        expected = np.floor((x - mean) * factor + mean)
        assert np.abs(corrupt(images, "contrast", severity).numpy() - expected).max() <= 1
        assert (corrupt(images, "contrast", severity).numpy() == expected).mean() > 0.999


def test_brightness_raises_the_value_of_hsv():
    for severity, increase in zip(SEVERITIES, (0.05, 0.1, 0.15, 0.2, 0.3), strict=True):
        images = photographs(32, 2)[:, :, ::4, ::4].contiguous()
        images[0, :, 0, 0] = 0
        pixels = images.permute(0, 2, 3, 1).reshape(-1, 3).tolist()
        expected = []
        for red, green, blue in pixels:
            hue, saturation, value = colorsys.rgb_to_hsv(red / 255, green / 255, blue / 255)
            expected.append([255 * c for c in colorsys.hsv_to_rgb(hue, saturation, min(value + increase, 1))])
        result = corrupt(images, "brightness", severity).permute(0, 2, 3, 1).reshape(-1, 3).numpy()
        assert np.abs(result + 0.5 - np.array(expected)).max() <= 0.501


def test_jpeg_is_what_a_jpeg_file_holds():
    image = pytest.importorskip("PIL.Image")
    for severity, quality in zip(SEVERITIES, (80, 65, 58, 50, 40), strict=True):
        images = photographs(32, 3)
        for pixels, result in zip(images, corrupt(images, "jpeg_compression", severity), strict=True):
            file = io.BytesIO()
            image.fromarray(pixels.permute(1, 2, 0).numpy()).save(file, "JPEG", quality=quality)
            assert np.array_equal(np.asarray(image.open(file)), result.permute(1, 2, 0).numpy())


def test_pixelate_makes_blocks_at_224():
    result = corrupt(photographs(224, 2), "pixelate", 5)  # a quarter of the pixels: blocks of 4 × 4
    assert torch.equal(result, result[:, :, ::4, ::4].repeat_interleave(4, 2).repeat_interleave(4, 3))


def test_blurs_and_pixelate_leave_a_flat_image_unchanged():
    for name in ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "pixelate", "elastic_transform"):
        for value in (1, 100, 128, 255):
            for severity in SEVERITIES:
                assert corrupt(flat(value, 3), name, severity).unique().tolist() == [value], (name, severity)


def test_glass_blur_takes_values_of_near_pixels_only():
    # Without blur (σ .05 does not reach the next pixel), severity 1 moves each pixel by one at most.
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(3, 3, 16, 16).contiguous()
    result = corrupt(images, "glass_blur", 1)[:, 0]
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
    result = corrupt(images, "fog", 5)  # (x + 1.5 · cloud) / (1 + 1.5) where the brightest value is 1
    assert result.max().item() <= 255
    cloud = result[0, 0].double() / 255 * 2.5 / 1.5
    assert cloud.flatten().sort().values[-2].item() <= 1.01
    assert torch.equal(result[:, 0, :4], result[:, 2, :4])


def test_elastic_without_displacement_is_an_affine_map():
    # Severity 1 has no displacement, so a linear ramp stays one away from the mirrored borders.
    ramp = (torch.arange(32) * 7).to(torch.uint8).view(1, 1, 1, 32).expand(4, 3, 32, 32).contiguous()
    middle = corrupt(ramp, "elastic_transform", 1)[:, 0, 12:20, 12:20].double()
    second = middle.diff(n=2, dim=2).abs().max(), middle.diff(n=2, dim=1).abs().max()
    assert max(second) <= 2  # twice the rounding to bytes


def test_constants_between_the_published_sizes():
    level = corruptions.get("gaussian_noise").level
    assert level(5, 32) == level(5, 16) == (0.10,)
    assert level(5, 224) == level(5, 500) == (0.38,)
    middle = round(math.sqrt(32 * 224))
    assert level(5, middle)[0] == pytest.approx(0.24, abs=0.001)
    assert interpolate((0.0, 1.0), (1.0, 1.0), 64)[1] == 1.0


@pytest.mark.parametrize(
    ("images", "options", "message"),
    [
        (torch.zeros(1, 3, 32, 32), {}, "uint8"),
        (torch.zeros(1, 2, 32, 32, dtype=torch.uint8), {}, "1 or 3"),
        (torch.zeros(3, 32, 32, dtype=torch.uint8), {}, "shape"),
        (torch.zeros(1, 3, 4, 32, dtype=torch.uint8), {}, "at least 8"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), {"severity": 6}, "severity"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), {"name": "frog"}, "'fog'"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), {"seed": -1}, "seed"),
    ],
)
def test_wrong_arguments_are_named(images, options, message):
    with pytest.raises(ValueError, match=message):
        corrupt(images, **{"name": "fog", "severity": 1, **options})


def test_no_images_give_no_images():
    assert corrupt(flat()[:0], "fog", 3).shape == (0, 3, 32, 32)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_the_gpu_gives_the_same_images(name):
    images = photographs(32, 8)
    on_gpu = corrupt(images.cuda(), name, 5)
    assert on_gpu.is_cuda
    difference = (on_gpu.cpu().int() - corrupt(images, name, 5).int()).abs()
    assert difference.max() <= 1
    assert (difference > 0).double().mean() < 1e-3
