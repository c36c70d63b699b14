"""The photographs of frost, the texture that replaces them, and plasma."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from medbn.data.corruptions import corrupt
from medbn.data.corruptions.frost import FROST_FILES, frost_folder, frost_photographs, synthetic_frost
from medbn.data.corruptions.plasma import plasma

from .images import smooth_images


def test_frost_mixes_in_photographs(frost_photographs, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    images = smooth_images(32, 6)
    frosted = corrupt(images, "frost", 5, frost=frost_photographs)
    assert not torch.equal(frosted, images)
    monkeypatch.setenv("MEDBN_FROST", str(frost_photographs))
    assert torch.equal(corrupt(images, "frost", 5), frosted)
    large = smooth_images(224, 2)  # the photographs are hardly larger
    assert corrupt(large, "frost", 5, frost=frost_photographs).shape == large.shape
    black = torch.zeros(50, 3, 32, 32, dtype=torch.uint8)
    mean = corrupt(black, "frost", 5, frost=frost_photographs).double().mean().item()
    pictures = [np.asarray(image.open(file)).mean() for file in frost_photographs.iterdir()]
    assert mean == pytest.approx(0.45 * np.mean(pictures), rel=0.15)


@pytest.fixture
def write_photographs(tmp_path_factory):
    """A function that writes the same picture, (H, W, 3) bytes, as each of the five photographs."""
    image = pytest.importorskip("PIL.Image")

    def write(picture):
        folder = tmp_path_factory.mktemp("frost")
        for name in FROST_FILES:
            image.fromarray(picture).save(folder / name, format="PNG")  # whatever the suffix: JPEG would change it
        return folder

    return write


def test_the_size_of_a_scaled_photograph_is_rounded_as_opencv_does(write_photographs):
    """``cv2.resize(photograph, (0, 0), fx=0.2, fy=0.2)`` rounds to the nearest size and reads every fifth pixel."""
    picture = np.random.default_rng(0).integers(0, 256, (302, 404, 3), dtype=np.uint8)
    scaled = frost_photographs(write_photographs(picture), 0.2, 32, 32)[0]
    assert np.array_equal(scaled.transpose(1, 2, 0), picture[2::5, 2::5][:60, :81])


def test_a_crop_never_holds_the_last_row_or_column(write_photographs):
    """The benchmark draws positions with ``randint(0, size - 32)``, which excludes the last one."""
    black = torch.zeros(40, 3, 32, 32, dtype=torch.uint8)
    for last, drawn in [(33, False), (32, True)]:  # of the 34 rows and columns of a scaled photograph
        picture = np.zeros((170, 170, 3), dtype=np.uint8)
        picture[5 * last :] = picture[:, 5 * last :] = 255
        assert corrupt(black, "frost", 5, frost=write_photographs(picture)).any() == drawn
    one_position = write_photographs(np.full((160, 160, 3), 255, dtype=np.uint8))
    assert (corrupt(black, "frost", 5, frost=one_position) == 114).all()


def test_missing_photographs_say_what_to_do(tmp_path, monkeypatch):
    monkeypatch.delenv("MEDBN_FROST", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match=r"imagecorruptions.*synthetic"):
        corrupt(smooth_images(32, 1), "frost", 1)
    with pytest.raises(FileNotFoundError, match=r"frost1\.png"):
        frost_folder(tmp_path)


def test_synthetic_frost_is_a_bright_texture():
    texture = synthetic_frost(np.random.default_rng(0), 40, 50)
    assert texture.shape == (3, 40, 50)
    assert 60 < texture.mean() < 200
    assert texture.std() > 15


@pytest.mark.parametrize("side", [16, 128])
def test_plasma_has_values_from_0_to_1_and_decay_smooths_it(side):
    rough, smooth = (plasma(np.random.default_rng(0), side, decay) for decay in (1.2, 3.0))
    for field in (rough, smooth):
        assert field.min() == 0
        assert field.max() == 1
        assert field.shape == (side, side)
    assert np.abs(np.diff(rough, axis=0)).mean() > 2 * np.abs(np.diff(smooth, axis=0)).mean()
