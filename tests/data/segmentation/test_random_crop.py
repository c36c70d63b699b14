"""Random crops keep an image and its labels together."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from medbn import data

GREYS = torch.tensor([0, 120, 240], dtype=torch.uint8)


def sample(height=40, width=60):
    """An image that shows its own labels."""
    labels = torch.zeros(height, width, dtype=torch.int64)
    labels[height // 2 :] = 1
    labels[5:30, 10:25] = 2
    return GREYS[labels].expand(3, -1, -1).contiguous(), labels


@pytest.mark.parametrize("size", [(32, 32), (24, 80), (64, 40)])
def test_the_crop_shows_its_labels(size):
    generator = torch.Generator().manual_seed(1)
    image, labels = sample()
    padded = 0
    for _ in range(30):
        crop, crop_labels = data.random_crop(image, labels, size, generator, fill=77)
        assert crop.shape == (3, *size)
        assert crop.dtype == torch.uint8
        assert crop_labels.shape == size
        outside = crop_labels == data.IGNORE
        padded += int(outside.any())
        assert (crop[:, outside] == 77).all()
        # Bilinear values differ from a class's grey only along the borders of classes.
        kinds = crop_labels[None].float()
        inside = (F.max_pool2d(kinds, 3, 1, 1) == -F.max_pool2d(-kinds, 3, 1, 1))[0] & ~outside
        assert inside.any()
        assert ((crop[0].int() - GREYS[crop_labels.clamp(max=2)].int()).abs()[inside] <= 1).all()
    assert padded > 0


@pytest.mark.parametrize("size", [(48, 64), (20, 100)])
def test_a_batch_of_crops_is_what_torch_interpolates(size):
    generator = torch.Generator().manual_seed(4)
    images = torch.randint(256, (6, 3, 48, 64), generator=generator, dtype=torch.uint8)
    labels = 256 + torch.arange(48 * 64).view(1, 48, 64).expand(6, -1, -1)
    places = data.draw_crops(6, (48, 64), size, generator)
    crops, crop_labels = data.cut_crops(images, labels, places, size, fill=9)
    for image, crop, numbers, ((top, rows, height, above, _), (left, columns, width, before, flipped)) in zip(
        images, crops, crop_labels, places.tolist(), strict=True
    ):
        part = image[None, :, top : top + rows, left : left + columns].float()
        expected = F.interpolate(part, (height, width), mode="bilinear", antialias=True, align_corners=False)[0]
        inside = crop[:, above : above + height, before : before + width].float()
        expected = expected.flip(2) if flipped else expected
        torch.testing.assert_close(inside, expected, atol=0.51, rtol=0)
        assert (numbers != data.IGNORE).sum() == height * width
        assert crop.float().sum() == inside.sum() + 9 * 3 * (size[0] * size[1] - height * width)
        row, column = divmod(int(numbers[above + height // 2, before + width // 2]) - 256, 64)
        centre = width - 1 - width // 2 if flipped else width // 2
        assert abs(row + 0.5 - top - (height // 2 + 0.5) * rows / height) <= 0.5
        assert abs(column + 0.5 - left - (centre + 0.5) * columns / width) <= 0.5


def test_without_scaling_and_flip_the_crop_is_a_window():
    generator = torch.Generator().manual_seed(2)
    image = torch.arange(3 * 40 * 60).remainder(251).to(torch.uint8).view(3, 40, 60)
    labels = torch.arange(40 * 60).remainder(200).view(40, 60)
    windows = image.unfold(1, 16, 1).unfold(2, 16, 1)
    seen = set()
    for _ in range(20):
        crop, crop_labels = data.random_crop(image, labels, (16, 16), generator, scale=(1, 1), flip=False)
        same = (windows == crop[:, None, None]).all(-1).all(-1).all(0).nonzero().tolist()
        assert any(torch.equal(labels[y : y + 16, x : x + 16], crop_labels) for y, x in same)
        seen.add(tuple(same[0]))
    assert len(seen) > 15


def test_half_of_the_crops_are_flipped():
    image, labels = sample()
    labels[:, :30], labels[:, 30:] = 0, 1
    image = GREYS[labels].expand(3, -1, -1).contiguous()
    generator = torch.Generator().manual_seed(3)
    crops = [data.random_crop(image, labels, (40, 60), generator, scale=(1, 1)) for _ in range(200)]
    flipped = sum(int(y[0, 0] == 1) for _, y in crops)
    assert 70 < flipped < 130
    assert all(torch.equal(GREYS[y], x[0]) for x, y in crops)


def test_the_generator_decides():
    image, labels = sample()
    first, second = (data.random_crop(image, labels, (20, 30), torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


def test_wrong_arguments_are_named():
    image, labels = sample()
    generator = torch.Generator()
    with pytest.raises(ValueError, match="uint8"):
        data.random_crop(image.float(), labels, (8, 8), generator)
    with pytest.raises(ValueError, match="scale"):
        data.random_crop(image, labels, (8, 8), generator, scale=(2, 1))
