"""The digits and both CIFAR datasets are read as their files hold them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from medbn import data
from medbn.data.digits import enlarge

from .images import cifar_records


def test_digits_are_scikit_learns_enlarged():
    original = pytest.importorskip("sklearn.datasets").load_digits()
    train, test = data.load("digits", "train"), data.load("digits")
    assert (len(train), len(test)) == (1000, 797)
    labels = torch.cat([train.labels, test.labels]).numpy()
    assert np.array_equal(labels, original.target)
    images = torch.cat([train.read(range(1000)), test.read(range(797))])
    assert images.shape == (1797, 1, 16, 16)
    small = torch.from_numpy(original.images).unsqueeze(1) * (255 / 16)
    expected = F.interpolate(small, scale_factor=2, mode="bilinear", align_corners=False)
    assert (images.double() - expected).abs().max() <= 0.5 + 1e-9


def test_enlarging_keeps_flat_images_flat():
    for level in (0, 5, 16):
        assert enlarge(torch.full((1, 8, 8), level, dtype=torch.uint8)).unique().tolist() == [round(level * 255 / 16)]


def test_cifar10_reads_its_records(root):
    test = data.load("cifar10", root=root)
    records = cifar_records(30, 1, 10)
    assert test.classes[3] == "cat"
    assert test.labels.tolist() == records[:, 0].tolist()
    assert np.array_equal(test.read(range(30)).numpy(), records[:, 1:].reshape(30, 3, 32, 32))
    train = data.load("cifar10", "train", root=root)
    assert len(train) == 100
    assert np.array_equal(train.read([25])[0].numpy().ravel(), cifar_records(20, 1, 10, 2)[5, 1:])


def test_cifar100_takes_the_fine_label(root):
    test = data.load("cifar100", root=root)
    records = cifar_records(25, 2, 100)
    assert test.labels.tolist() == records[:, 1].tolist()
    assert test.classes[7] == "kind7"
    assert np.array_equal(test.read([24])[0].numpy().ravel(), records[24, 2:])


def test_damaged_or_missing_files_are_named(root):
    file = root / "cifar-10-batches-bin" / "test_batch.bin"
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(ValueError, match=r"test_batch\.bin"):
        data.load("cifar10", root=root)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"test_batch\.bin"):
        data.load("cifar10", root=root)
    cifar_records(3, 1, 200).tofile(file)
    with pytest.raises(ValueError, match="10 classes"):
        data.load("cifar10", root=root)
