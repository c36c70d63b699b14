"""Augmentations in plain torch, against colorsys, torch's own affine grid and what they must leave alone."""

import colorsys

import pytest
import torch
import torch.nn.functional as F

from medbn.methods import _augment
from medbn.methods._augment import Augmentation, shuffle_patches


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_hue_turns_as_in_colorsys():
    images = torch.rand(2, 3, 3, 3, generator=generator())
    images[0, :, 0, 0] = 0.4  # grey
    images[0, :, 0, 1] = torch.tensor([0.0, 0.0, 0.0])
    for turn in (0.06, -0.3, 0.0):
        turned = _augment._turn_hue(images, turn)
        for image, new in zip(images, turned, strict=True):
            for pixel, found in zip(image.flatten(1).T.tolist(), new.flatten(1).T, strict=True):
                h, s, v = colorsys.rgb_to_hsv(*pixel)
                torch.testing.assert_close(found, torch.tensor(colorsys.hsv_to_rgb((h + turn) % 1, s, v)))


def test_a_blur_keeps_constant_images_and_spreads_a_point_by_its_variance():
    point = torch.zeros(1, 2, 13, 13)
    point[..., 6, 6] = 1.0
    blurred = _augment._blur(point, 0.5)
    assert blurred.shape == (1, 2, 9, 9)
    rows = blurred[0, 0].sum(dim=1)
    assert rows.sum().item() == pytest.approx(1.0, abs=1e-6)
    variance = (rows * (torch.arange(9.0) - 4).square()).sum().item()
    assert variance == pytest.approx(0.25, abs=0.05)
    torch.testing.assert_close(_augment._blur(torch.full((1, 3, 8, 8), 0.7), 0.3), torch.full((1, 3, 4, 4), 0.7))


@pytest.mark.parametrize("padding", ["border", "reflection"])
def test_pixels_move_as_by_an_affine_grid_over_a_padded_image(padding):
    images = torch.rand(2, 3, 12, 12, generator=generator())
    moved = _augment._move(images, generator(4), padding, 0)
    g = generator(4)
    angle, down, right, scale = (
        low + (high - low) * float(torch.rand((), generator=g, dtype=torch.float64))
        for low, high in ((-15, 15), (-1.5, 1.5), (-1.5, 1.5), (0.9, 1.1))
    )
    angle, down, right = torch.deg2rad(torch.tensor(angle)), round(down), round(right)
    padded = F.pad(images, [6] * 4, mode="replicate" if padding == "border" else "reflect")
    cos, sin = angle.cos() / scale, angle.sin() / scale
    shift = torch.stack([cos * right + sin * down, cos * down - sin * right]) * 2 / 24
    theta = torch.stack([torch.stack([cos, sin, -shift[0]]), torch.stack([-sin, cos, -shift[1]])])
    grid = F.affine_grid(theta.expand(2, 2, 3), [2, 3, 24, 24], align_corners=False)
    expected = F.grid_sample(padded, grid, align_corners=False)[..., 6:18, 6:18]
    torch.testing.assert_close(moved, expected, rtol=1e-4, atol=1e-4)


def test_the_places_of_pixels_are_exact_in_bfloat16_too():
    images = torch.rand(1, 1, 300, 300, generator=generator()).bfloat16()
    moved = _augment._move(images, generator(4), "border", 0)
    expected = _augment._move(images.double(), generator(4), "border", 0)
    assert moved.dtype == torch.bfloat16
    torch.testing.assert_close(moved.double(), expected, rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_augmented_images_are_images_and_repeatable(channels):
    images = torch.rand(4, channels, 9, 14, generator=generator())
    seen = [Augmentation()(images, generator(seed)) for seed in (1, 1, 2)]
    assert all(x.shape == images.shape and x.min() >= 0 and x.max() <= 1 for x in seen)
    assert torch.equal(seen[0], seen[1])
    assert not torch.allclose(seen[0], seen[2], atol=0.01)
    alone = Augmentation()(images[2:3], generator(1))
    torch.testing.assert_close(alone, seen[0][2:3])  # whatever the other images are


def test_patches_are_shuffled_each_image_its_own_way():
    images = torch.arange(64.0).view(1, 1, 8, 8).repeat(3, 2, 1, 1)
    order = torch.rand(3, 16, generator=generator()).argsort(dim=1)
    shuffled = shuffle_patches(images, order)
    for i, image in enumerate(shuffled[:, 0]):
        patches = [image[r : r + 2, c : c + 2] for r in (0, 2, 4, 6) for c in (0, 2, 4, 6)]
        old = [images[i, 0, r : r + 2, c : c + 2] for r in (0, 2, 4, 6) for c in (0, 2, 4, 6)]
        assert all(torch.equal(patch, old[k]) for patch, k in zip(patches, order[i], strict=True))
    assert torch.equal(shuffled[:, 0], shuffled[:, 1])  # channels stay together
    assert not torch.equal(shuffled[0], shuffled[1])
    assert shuffle_patches(torch.rand(3, 3, 30, 17), order).shape == (3, 3, 30, 17)
