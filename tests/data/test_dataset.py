"""Datasets: batches, subsets, order and fingerprints."""

from __future__ import annotations

import threading

import pytest
import torch

from medbn import data


@pytest.fixture
def dataset(root):
    return data.load("cifar10", root=root)


def test_batches_in_order_as_bytes_and_as_floats_from_any_batch(dataset):
    images = dataset.read(range(30))
    batches = list(dataset.batches(8, dtype=torch.uint8))
    assert [len(batch) for batch, _ in batches] == [8, 8, 8, 6]
    assert torch.equal(torch.cat([batch for batch, _ in batches]), images)
    assert torch.equal(torch.cat([labels for _, labels in batches]), dataset.labels)
    floats = list(dataset.batches(8, first=1, limit=1))
    assert len(floats) == 1
    assert torch.equal(floats[0][0], images[8:16].float() / 255)
    assert len(list(dataset.batches(8, drop_last=True))) == 3
    assert list(dataset.batches(8, first=9)) == []


@pytest.mark.parametrize("arguments", [{"size": 0}, {"size": 8, "dtype": torch.int64}, {"size": 8, "first": -1}])
def test_wrong_arguments_of_batches_are_named(dataset, arguments):
    with pytest.raises(ValueError, match=r"size|dtype|first"):
        dataset.batches(**arguments)


def test_an_iterator_that_is_closed_early_leaves_no_thread(dataset):
    batches = dataset.batches(4)
    next(batches)
    batches.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("medbn-data")]


def test_a_batch_can_be_modified_without_changing_the_dataset(dataset):
    before = dataset.read(range(30)).clone(), dataset.labels.clone()
    images, labels = next(dataset.batches(10, dtype=torch.uint8))
    images.zero_()
    labels.fill_(7)
    assert torch.equal(dataset.read(range(30)), before[0])
    assert torch.equal(dataset.labels, before[1])


def test_subset_and_shuffle(dataset):
    part = dataset.subset([7, 3, 3])
    assert torch.equal(part.read(range(3)), dataset.read([7, 3, 3]))
    assert torch.equal(part.read([2, 0]), dataset.read([3, 7]))
    assert part.labels.tolist() == dataset.labels[[7, 3, 3]].tolist()
    mixed = dataset.shuffle(0)
    assert sorted(mixed.labels.tolist()) == sorted(dataset.labels.tolist())
    assert torch.equal(mixed.read(range(30)), dataset.shuffle(0).read(range(30)))
    for wrong in ([30], torch.ones(30, dtype=torch.bool), [1.7], [[1]]):
        with pytest.raises(ValueError, match="0 to 29"):
            dataset.subset(wrong)


def test_subsets_of_subsets_and_of_corrupted_images(dataset):
    nested = dataset.shuffle(0).subset(range(3, 9)).subset([4, 0])
    order = dataset.shuffle(0).read(range(30))
    assert torch.equal(nested.read(range(2)), order[[7, 3]])
    assert torch.equal(next(nested.batches(2, dtype=torch.uint8))[0], order[[7, 3]])
    assert torch.equal(dataset.read(range(0, 10, 3)), dataset.read(range(10))[::3])
    assert dataset.subset([]).read([]).shape == (0, 3, 32, 32)
    assert data.corrupt(dataset, "fog", 1).read([]).shape == (0, 3, 32, 32)


def test_the_fingerprint_depends_on_images_labels_and_order_only(dataset, root):
    assert data.load("cifar10", root=root).fingerprint == dataset.fingerprint
    images, labels = dataset.read(range(30)).clone(), dataset.labels.clone()
    labels[3] = (labels[3] + 1) % 10
    others = [
        dataset.subset([0, 1]),
        dataset.subset([1, 0]),
        dataset.shuffle(1),
        data.load("cifar10", "train", root=root),
        data.load("cifar10", corruption="fog", severity=1, root=root),
        data.load("cifar10", corruption="fog", severity=2, root=root),
        data.load("cifar10", corruption="fog", severity=2, seed=1, root=root),
        data.load("cifar10", corruption="frost", frost="synthetic", root=root),
        data.from_tensors("cifar10", "test", dataset.classes, images, labels),
    ]
    assert len({dataset.fingerprint, *(other.fingerprint for other in others)}) == len(others) + 1
    renamed = data.from_tensors("another name", "test", dataset.classes, images, dataset.labels)
    assert renamed.fingerprint == dataset.fingerprint


def test_from_tensors_refuses_floats():
    with pytest.raises(ValueError, match="uint8"):
        data.from_tensors("x", "test", ["a"], torch.zeros(2, 3, 8, 8), torch.zeros(2))
