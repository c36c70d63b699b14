import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import medbn
from medbn import analysis
from medbn.analysis.entropy_gradient import densities, measure_images, null_interval, precede
from medbn.analysis.registry import numbers_key

from .conftest import state_values

pytestmark = pytest.mark.slow  # the first test attacks batches


def small_model():
    torch.manual_seed(1)
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU()
    for layer in (layers[1], layers[4]):  # a bias of 0 puts the median on the edge of the ReLU
        nn.init.normal_(layer.bias)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5)).eval()


@pytest.mark.parametrize("estimator", ["mean", "median", "image_median"])
def test_gradient_norm_is_that_of_finite_differences_through_the_statistics(estimator):
    """Central differences of each image's entropy, computed by a float64 copy whose parameters are moved by hand."""
    model = small_model().double()
    images = torch.rand(7, 1, 8, 8, dtype=torch.float64)
    tta = medbn.adapt(copy.deepcopy(model), "tebn", estimator)
    entropy, norm = measure_images(tta, images)

    def entropies(moved):
        probabilities = torch.softmax(moved(images), dim=1)
        return -(probabilities * probabilities.log()).sum(dim=1)

    moved = medbn.convert(copy.deepcopy(model), estimator=estimator).eval()
    squares, step = torch.zeros(7, dtype=torch.float64), 1e-6
    with torch.no_grad():
        torch.testing.assert_close(entropy, entropies(moved))
        for layer in (moved[1], moved[4]):
            for parameter in (layer.weight, layer.bias):
                for position in range(parameter.numel()):
                    parameter[position] += step
                    above = entropies(moved)
                    parameter[position] -= 2 * step
                    squares += ((above - entropies(moved)) / (2 * step)).square()
                    parameter[position] += step
    torch.testing.assert_close(norm, squares.sqrt(), rtol=1e-4, atol=1e-7)


def test_measuring_images_leaves_the_adapter_as_it_was(device):
    tta = medbn.adapt(small_model().to(device), "tent", "median")
    images = torch.rand(6, 1, 8, 8, device=device)
    tta(images)
    before = state_values(tta)
    measure_images(tta, images)
    assert all(parameter.grad is None for parameter in tta.parameters())
    assert state_values(tta) == before


def test_the_gradient_is_taken_at_what_a_method_has_learned():
    tta = medbn.adapt(small_model(), "tent", "mean", lr=0.1)
    images = torch.rand(6, 1, 8, 8)
    before, _ = measure_images(tta, images)
    tta(images)
    after, _ = measure_images(tta, images)
    assert not torch.allclose(before, after)


def test_a_model_without_affine_parameters_is_refused():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, affine=False), nn.Flatten(), nn.Linear(144, 3))
    with pytest.raises(ValueError, match="affine"):
        measure_images(medbn.adapt(model, "tebn", "mean"), torch.rand(4, 1, 8, 8))


def test_precede_counts_pairs():
    assert precede(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 3.0, 0.0])) == pytest.approx((1 + 1 + 0.5 + 1) / 6)
    assert precede(torch.zeros(3), torch.ones(2)) == 1.0
    assert precede(torch.ones(3), torch.ones(2)) == 0.5


def test_alike_groups_precede_each_other_within_the_null_interval_in_most_permutations():
    generator = torch.Generator().manual_seed(0)
    values, low, high = torch.rand(60, generator=generator), *null_interval(12, 48)
    shuffled = (values[torch.randperm(60, generator=generator)] for _ in range(400))
    inside = [low <= precede(one[:12], one[12:]) <= high for one in shuffled]
    assert 0.91 < sum(inside) / len(inside) < 0.99


def test_densities_integrate_to_one_and_share_their_places():
    groups = {"benign": np.random.default_rng(0).normal(size=50), "malicious": np.full(10, 3.0)}
    for where, height in densities(groups).values():
        assert height.sum() * (where[1] - where[0]) == pytest.approx(1, abs=0.01)
        np.testing.assert_array_equal(where, densities(groups)["benign"][0])


@pytest.fixture(scope="module")
def numbers(experiment):
    return analysis.measure("entropy-gradient", experiment)


def test_rows_summarise_the_points(numbers):
    assert numbers.distinct("objective") == ["targeted", "indiscriminate"]
    for row in numbers.rows:
        points = numbers.details[row["objective"]]
        assert (row["benign"], row["malicious"]) == (32, 8)
        assert row["different"] == 1  # all start from the same grey image
        assert (row["alike_low"], row["alike_high"]) == (0, 1)  # and one image says nothing about others
        for group in ("benign", "malicious"):
            for quantity in ("entropy", "norm"):
                values = points[group][quantity]
                assert len(values) == row[group]
                assert np.isfinite(values).all()
                assert row[f"{quantity}_{group}"] in values


def test_images_of_an_attack_that_starts_from_clean_ones_differ(experiment):
    attack = replace(experiment.settings.attack, start="offset", steps=1)
    numbers = analysis.measure("entropy-gradient", analysis.Experiment(replace(experiment.settings, attack=attack)))
    assert [row["different"] for row in numbers.rows] == [8, 8]
    caption = analysis.get("entropy-gradient").caption(numbers)
    assert "offset" in caption
    assert "repeated" not in caption


def test_each_panel_has_both_groups_and_their_densities(numbers):
    figure_class = pytest.importorskip("matplotlib.figure").Figure
    figure = figure_class()
    analysis.draw(numbers, figure, analysis.THEMES["dark"])
    panels = [axis for part in figure.subfigs for axis in part.axes]
    scatters = [axis for axis in panels if len(axis.collections) == 2]
    assert len(scatters) == 2
    for axis, objective in zip(scatters, ("targeted", "indiscriminate"), strict=True):
        assert (axis.get_xlabel(), axis.get_ylabel()) == ("norm of the gradient", "entropy (nats)")
        for points, group in zip(axis.collections, ("benign", "malicious"), strict=True):
            expected = numbers.details[objective][group]
            np.testing.assert_allclose(points.get_offsets()[:, 0], expected["norm"])
            np.testing.assert_allclose(points.get_offsets()[:, 1], expected["entropy"])
    assert sum(len(axis.lines) == 2 for axis in panels) == 4
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["benign", "malicious"]


def test_numbers_of_one_objective_are_stored_apart_from_those_of_both(experiment):
    alone = analysis.Experiment(replace(experiment.settings, objectives=("targeted",)))
    assert numbers_key("entropy-gradient", alone) != numbers_key("entropy-gradient", experiment)
