"""Datasets by name, users' own among them, and images that are corrupted as they are read."""

from __future__ import annotations

import pytest
import torch

from medbn import data

from .images import smooth_images


def test_corrupted_as_read_equals_corrupted_at_once(root):
    dataset = data.load("cifar10", root=root)
    noisy = data.load("cifar10", corruption="gaussian_noise", severity=2, seed=4, root=root)
    expected = data.corruptions.corrupt(dataset.read(range(30)), "gaussian_noise", 2, seed=4)
    assert torch.equal(torch.cat([images for images, _ in noisy.batches(7, dtype=torch.uint8)]), expected)
    assert torch.equal(noisy.read([5, 2]), expected[[5, 2]])
    assert torch.equal(noisy.subset([9, 1]).read(range(2)), expected[[9, 1]])
    assert noisy.name == "cifar10/gaussian_noise/2"


def test_the_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MEDBN_DATA", str(tmp_path / "a"))
    assert data.find_root() == tmp_path / "a"
    assert data.find_root(tmp_path / "b") == tmp_path / "b"
    monkeypatch.delenv("MEDBN_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    monkeypatch.setattr("sys.platform", "linux")
    assert data.find_root() == tmp_path / "c" / "medbn"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cifar11", {}, "'cifar1"),
        ("digits", {"split": "dev"}, "split"),
        ("digits", {"corruption": "fog", "severity": 9}, "severity"),
        ("digits", {"corruption": "frog"}, "'fog'"),
        ("digits-c", {"root": "."}, r"digits-c.*medbn data generate digits-c"),
    ],
)
def test_wrong_names(name, options, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        data.load(name, **options)


def test_a_missing_dataset_says_how_to_get_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"medbn data fetch cifar10-c.*medbn data generate cifar10-c"):
        data.load("cifar10-c", corruption="fog", root=tmp_path)


@pytest.mark.parametrize("name", data.available())
def test_what_is_known_of_a_dataset_before_it_is_opened_is_true(name, root):
    info = data.get(name)
    if name == "digits":
        dataset = data.load(name)
        assert (len(dataset), dataset.shape, len(dataset.classes)) == (info.images, info.shape, info.classes)
    elif name.startswith("cifar") and not info.corrupted:
        dataset = data.load(name, root=root)
        assert (dataset.shape, len(dataset.classes)) == (info.shape, info.classes)
    if info.clean:
        clean = data.get(info.clean)
        assert (info.images, info.shape[1:], info.classes) == (clean.images, clean.shape[1:], clean.classes)
    assert info.folder is None or info.how_to_get()


@pytest.fixture
def own_dataset():
    """A dataset of a user, registered for the duration of a test."""

    @data.register("own", about="two random images", images=2, shape=(3, 16, 16), classes=2)
    def open_own(folder, split):
        return data.from_tensors("own", split, ("a", "b"), smooth_images(16, 2), torch.arange(2))

    yield "own"
    data.unregister("own")


def test_a_dataset_of_a_user_is_loaded_corrupted_and_listed_by_name(own_dataset):
    assert own_dataset in data.available()
    assert data.get(own_dataset).is_complete()
    assert len(data.load(own_dataset)) == 2
    assert data.load(own_dataset, corruption="fog").name == "own/fog/5"
    with pytest.raises(ValueError, match="own"):
        data.register("own")(lambda folder, split: None)


def test_a_corruption_of_a_user_is_applied_by_name():
    @data.corruptions.register("darken", group="digital", small=[0.9, 0.8, 0.7, 0.6, 0.5])
    def darken(x, level, random):
        return x * level[0]

    try:
        images = smooth_images(16, 2)
        result = data.corruptions.corrupt(images, "darken", 5)
        assert torch.equal(result, (images.float() * 0.5 + 2**-11).floor().to(torch.uint8))
        assert "darken" in data.corruptions.available()
        assert "darken" not in data.corruptions.NAMES  # a recipe without a list runs the benchmark's fifteen
        assert data.load("digits", corruption="darken").name == "digits/darken/5"
    finally:
        data.corruptions.unregister("darken")
    with pytest.raises(ValueError, match="five"):
        data.corruptions.register("darken", group="digital", small=[0.9])(darken)
