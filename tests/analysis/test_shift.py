"""The L1 distances of figures 5 to 7, beside their definition in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import medbn
from medbn import analysis
from medbn.analysis.shift import statistic_shift

CENTRES = {"mean": np.mean, "median": lambda x: np.quantile(x, 0.5, method="lower")}


def by_definition(x, benign, centre):
    """‖μ − μ_ben‖₁ and ‖σ − σ_ben‖₁, where σ² is the mean squared distance from the centre."""
    total = np.zeros(2)
    for channel in range(x.shape[1]):
        statistics = []
        for values in (x[:, channel].ravel(), x[benign, channel].ravel()):
            middle = centre(values)
            statistics.append(np.array([middle, np.sqrt(np.mean((values - middle) ** 2))]))
        total += np.abs(statistics[0] - statistics[1])
    return total


@pytest.mark.parametrize("estimator", CENTRES)
def test_the_shift_is_the_sum_over_channels(estimator):
    x = torch.randn(9, 3, 2, 5, dtype=torch.float64)
    x[6:] += 4
    benign = torch.arange(9) < 6
    expected = by_definition(x.numpy(), benign.numpy(), CENTRES[estimator])
    np.testing.assert_allclose(statistic_shift(x, estimator, benign), expected, rtol=1e-9)


def test_both_statistics_come_from_one_pass_of_the_poisoned_batch(experiment):
    numbers = analysis.measure("shift", experiment)
    cell = experiment.cell("median", epsilon=1.0)
    adapter, poisoned = experiment.adapter(cell), experiment.poisoned(cell)
    with medbn.observe(adapter.model) as observations, torch.no_grad():
        adapter(poisoned)
        inputs = {one.name: one.input.double().numpy() for one in observations}
    benign = experiment.benign.numpy()
    rows = numbers.select(epsilon=1.0, estimator="median")
    assert [row["layer"] for row in rows] == list(inputs)
    for row in rows:
        expected = by_definition(inputs[row["layer"]], benign, CENTRES["median"])
        assert (row["centre"], row["sigma"]) == pytest.approx(tuple(expected), rel=1e-4)
        assert row["channels"] == inputs[row["layer"]].shape[1]


def test_there_is_a_row_for_each_layer_estimator_epsilon_and_for_no_attack(experiment):
    numbers = analysis.measure("shift", experiment)
    assert len(numbers.rows) == 9 * 3 * 3
    assert numbers.distinct("epsilon") == [0.0, 1.0, pytest.approx(8 / 255, rel=1e-5)]
    unattacked = sum(row["centre"] for row in numbers.select(epsilon=0.0, estimator="mean"))
    attacked = sum(row["centre"] for row in numbers.select(epsilon=1.0, estimator="mean"))
    assert attacked > 2 * unattacked


def test_the_panels_have_a_line_per_estimator_and_all_layers(experiment):
    figure_class = pytest.importorskip("matplotlib.figure").Figure
    pytest.importorskip("sklearn")
    numbers = analysis.measure("shift", experiment)
    figure = figure_class()
    analysis.draw(numbers, figure, analysis.THEMES["light"])
    assert len(figure.axes) == 4
    for axis in figure.axes:
        assert len([line for line in axis.lines if line.get_linestyle() == "-" and len(line.get_xdata()) == 9]) == 3
        for line in axis.lines:
            assert np.isfinite(line.get_ydata()).all()
    assert [text.get_text() for text in figure.axes[2].get_xticklabels()] == numbers.distinct("layer")
    assert [axis.get_title() for axis in figure.axes[:2]] == ["ε = 1", "ε = 8/255"]
    assert {text.get_text() for text in figure.legends[0].get_texts()} >= {"BatchNorm", "MedBN", "no attack"}
