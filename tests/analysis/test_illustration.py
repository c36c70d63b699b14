"""Figure 1: a mean moves in proportion to one sample; a median stays between its neighbours."""

from __future__ import annotations

import numpy as np
import pytest

from medbn import analysis


@pytest.fixture(scope="module")
def numbers():
    return analysis.measure("illustration")


def test_the_mean_moves_by_the_value_over_the_number_of_samples(numbers):
    count = len(numbers.details["benign"])
    for row in numbers.select(estimator="mean"):
        assert row["shift"] == pytest.approx(row["value"] / (count + 1), abs=1e-5)


def test_the_median_stays_between_the_middle_samples(numbers):
    benign = np.array(numbers.details["benign"])
    low, high = benign[len(benign) // 2 - 1], benign[len(benign) // 2]
    for row in numbers.select(estimator="median"):
        assert low <= row["centre"] <= high


def test_each_panel_has_the_samples_and_the_centres(numbers):
    figure_class = pytest.importorskip("matplotlib.figure").Figure
    figure = figure_class()
    analysis.draw(numbers, figure, analysis.THEMES["dark"])
    assert [axis.get_title() for axis in figure.axes] == ["BatchNorm", "MedBN", "image_median"]
    for axis, name in zip(figure.axes, ("mean", "median", "image_median"), strict=True):
        centres = [row["centre"] for row in numbers.select(estimator=name)]
        assert any(list(line.get_xdata()) == centres for line in axis.lines)
        assert sum(len(line.get_xdata()) == len(numbers.details["benign"]) for line in axis.lines) == len(centres)
