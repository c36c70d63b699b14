"""Segmentation datasets: batches, subsets, corruption with labels, and the embedded scenes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from medbn import data

CLASSES, COLOURS = ("road", "sky"), ((128, 64, 128), (70, 130, 180))


@pytest.fixture
def dataset():
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (7, 3, 12, 20), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 2, (7, 12, 20), generator=generator)
    labels[0, 0, 0] = data.IGNORE
    return data.segmentation_from_tensors("streets", "test", CLASSES, COLOURS, images, labels)


def test_batches_are_the_samples_in_order(dataset):
    images, labels = (torch.stack(parts) for parts in zip(*(dataset[k] for k in range(7)), strict=True))
    batches = list(dataset.batches(3, dtype=torch.uint8))
    assert [len(x) for x, _ in batches] == [3, 3, 1]
    assert torch.equal(torch.cat([x for x, _ in batches]), images)
    assert torch.equal(torch.cat([y for _, y in batches]), labels)
    assert labels.dtype == torch.int64
    assert labels[0, 0, 0] == data.IGNORE == 255
    ((floats, second),) = dataset.batches(3, first=1, limit=1)
    assert torch.equal(floats, images[3:6].float() / 255)
    assert torch.equal(second, labels[3:6])
    assert len(list(dataset.batches(3, drop_last=True))) == 2


def test_subset_and_shuffle_keep_images_and_labels_together(dataset):
    part = dataset.subset([4, 1, 1])
    assert len(part) == 3
    for position, index in enumerate([4, 1, 1]):
        assert all(torch.equal(a, b) for a, b in zip(part[position], dataset[index], strict=True))
    assert part.fingerprint != dataset.fingerprint
    with pytest.raises(ValueError, match="0 to 6"):
        dataset.subset([7])
    with pytest.raises(IndexError, match="7"):
        dataset[7]


def test_a_label_outside_the_classes_is_named():
    images, labels = torch.zeros(1, 3, 8, 8, dtype=torch.uint8), torch.full((1, 8, 8), 2)
    with pytest.raises(ValueError, match=r"streets.*label 2.*0 to 1"):
        data.segmentation_from_tensors("streets", "test", CLASSES, COLOURS, images, labels)
    with pytest.raises(ValueError, match="colour"):
        data.segmentation_from_tensors("streets", "test", CLASSES, COLOURS[:1], images, labels * 0)


@pytest.mark.parametrize(("split", "count"), [pytest.param("train", 600, marks=pytest.mark.slow), ("test", 240)])
def test_scenes_are_labelled_everywhere_and_use_every_class(split, count):
    scenes = data.load_segmentation("scenes", split)
    images, labels = scenes.read(range(count))
    assert len(scenes) == count
    assert labels.unique().tolist() == list(range(len(scenes.classes)))
    assert images.shape == (count, 3, 64, 96)


def test_scenes_have_the_same_bytes_everywhere():
    assert data.load_segmentation("scenes").fingerprint == "01f5e47bcdcb716daabc61a2ccc5d159"


def test_the_name_says_the_task():
    assert data.task_of("scenes") == data.get("scenes").task == "segmentation"
    assert data.task_of("digits") == "classification"
    with pytest.raises(ValueError, match=r"segmentation.*load_segmentation"):
        data.load("scenes")
    with pytest.raises(ValueError, match=r"classification.*data\.load\("):
        data.load_segmentation("digits")


def test_only_corruptions_that_move_pixels_change_labels():
    clean = data.load_segmentation("scenes")
    images, labels = clean.read(range(2))
    for name in data.corruptions.NAMES:
        noisy = data.load_segmentation("scenes", corruption=name, severity=4, frost="synthetic")
        noisy_images, noisy_labels = noisy.read(range(2))
        assert not torch.equal(noisy_images, images)
        assert torch.equal(noisy_labels, labels) == (name != "elastic_transform")


@pytest.mark.parametrize("severity", [1, 3, 5])
def test_elastic_moves_labels_as_it_moves_the_image(severity):
    # A class in a flat colour is a picture of its own label: away from its borders, the moved picture shows it.
    clean = data.load_segmentation("scenes")
    _, labels = clean.read(range(6))
    colours = torch.tensor([20 * k for k in range(13)], dtype=torch.uint8)
    pictures = colours[labels][:, None].expand(-1, 3, -1, -1).contiguous()
    flat = data.segmentation_from_tensors("flat", "test", clean.classes, clean.colours, pictures, labels)
    moved, moved_labels = data.corrupt_segmentation(flat, "elastic_transform", severity, seed=3).read(range(6))
    shown = colours[moved_labels]
    distance = (moved[:, 0].int() - shown.int()).abs()
    values = moved[:, :1].float()
    inside = F.max_pool2d(values, 3, 1, 1) == -F.max_pool2d(-values, 3, 1, 1)
    assert inside.float().mean() > 0.5
    assert (distance[inside[:, 0]] <= 1).all()
    assert not torch.equal(moved_labels, labels)


def test_elastic_reads_the_nearest_label():
    # At 32 px and severity 1 the map is affine: an image is read once, bilinearly, and the nearest pixel has a quarter
    # of the weight or more. Where a class has more than three quarters, it is the nearest pixel's.
    labels = torch.randint(0, 2, (4, 32, 48), generator=torch.Generator().manual_seed(0))
    images = (255 * labels)[:, None].expand(-1, 3, -1, -1).to(torch.uint8)
    weights = data.corruptions.corrupt(images, "elastic_transform", 1, seed=1)[:, 0].double() / 255
    moved = data.corruptions.corrupt_labels(labels, "elastic_transform", 1, seed=1)
    assert (moved[weights > 0.76] == 1).all()
    assert (moved[weights < 0.24] == 0).all()
    assert not torch.equal(moved, labels)


def test_corruption_does_not_depend_on_the_batch():
    noisy = data.load_segmentation("scenes", corruption="elastic_transform", severity=5)
    together = noisy.read(range(4))
    apart = [noisy.read([k]) for k in (3, 0)]
    for one, index in zip(apart, (3, 0), strict=True):
        assert torch.equal(one[0][0], together[0][index])
        assert torch.equal(one[1][0], together[1][index])
    assert noisy.fingerprint != data.load_segmentation("scenes").fingerprint
