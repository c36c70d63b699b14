"""Figure 10: the pixels of malicious images before and after, and their difference."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from medbn import analysis
from medbn.analysis.examples import amplify, decode, encode


def test_pixels_are_kept_to_the_byte():
    image = torch.randint(0, 256, (3, 5, 4)) / 255
    np.testing.assert_allclose(decode(encode(image)), image.permute(1, 2, 0).numpy(), atol=1e-6)
    grey = torch.rand(1, 5, 4)
    assert decode(encode(grey)).shape == (5, 4, 3)


def test_a_perturbation_is_grey_where_nothing_changed():
    change = np.array([0, 8 / 255, -8 / 255])
    np.testing.assert_allclose(amplify(0.5, 0.5 + change, 8 / 255), [0.5, 1, 0])


def test_changes_are_within_epsilon(experiment):
    numbers = analysis.measure("examples", experiment)
    for row, pixels in zip(numbers.rows, numbers.details["pixels"], strict=True):
        assert 0 < row["mean_change"] <= row["largest_change"] <= row["epsilon"] + 1e-6
        before = experiment.batch(experiment.cell("mean"))[0][row["image"]]
        assert pixels["before"] == encode(before)
        change = np.abs(decode(pixels["after"]) - decode(pixels["before"])).max()
        assert change == pytest.approx(row["largest_change"], abs=1.01 / 255)
    assert {row["image"] for row in numbers.rows} == set(range(32, 40))


def test_there_is_a_column_per_image_and_two_rows_per_epsilon(experiment):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    analysis.draw(analysis.measure("examples", experiment), figure, analysis.THEMES["light"])
    assert len(figure.axes) == 8 * 5
    assert all(axis.images[0].get_array().shape == (16, 16, 3) for axis in figure.axes)
