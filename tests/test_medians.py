"""Theorems 1 and 2 of the paper as properties, and what MedBN's own variance does."""

import numpy as np
import pytest
import torch

pytest.importorskip("hypothesis")
from hypothesis import example, given
from hypothesis import strategies as st

from medbn.functional import statistics
from medbn.medians import coordinate_wise_median, geometric_median

numbers = st.floats(-100, 100, allow_nan=False, width=32)
poison = st.floats(-1e30, 1e30, allow_nan=False)


@st.composite
def poisoned(draw, dimensions=1, majority=False):
    """Benign points, and malicious ones: fewer than half of all, or with ``majority`` more than half."""
    benign = draw(st.lists(st.tuples(*[numbers] * dimensions), min_size=2, max_size=9))
    n = len(benign)
    m = draw(st.integers(n + 1, 2 * n) if majority else st.integers(1, n - 1))
    return torch.tensor(benign, dtype=torch.float64), m


@st.composite
def malicious_points(draw, m, dimensions):
    return torch.tensor(draw(st.lists(st.tuples(*[poison] * dimensions), min_size=m, max_size=m)), dtype=torch.float64)


@pytest.mark.slow
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=40))
def test_the_lower_median_is_exact_for_any_values(values):
    centre, _ = statistics(torch.tensor(values, dtype=torch.float32).view(-1, 1), "median")
    assert centre.item() == sorted(np.float32(v) for v in values)[(len(values) - 1) // 2]


def medians(points):
    return {"coordinate-wise": coordinate_wise_median(points), "geometric": geometric_median(points)}


# --- theorem 1: numbers ----------------------------------------------------------------------------------------------


@given(poisoned(), st.floats(1, 1e12))
def test_one_sample_moves_the_mean_without_bound(sample, distance):
    benign, _ = sample
    n = len(benign) + 1
    malicious = (benign.mean() + n * distance).view(1, 1)
    together, alone = (statistics(points, "mean")[0] for points in (torch.cat([benign, malicious]), benign))
    assert (together - alone).item() == pytest.approx(distance, rel=1e-6)


@given(st.data())
def test_the_median_stays_among_the_benign_below_one_half(data):
    benign, m = data.draw(poisoned())
    malicious = data.draw(malicious_points(m, 1))
    centre, _ = statistics(torch.cat([malicious, benign]), "median")
    assert benign.min() <= centre.item() <= benign.max()
    benign_median, _ = statistics(benign, "median")
    assert abs(centre - benign_median) <= benign.max() - benign.min()
    assert abs(centre - benign.mean()) <= benign.max() - benign.min()


@given(poisoned(majority=True), st.floats(200, 1e30))
def test_a_majority_controls_the_median(sample, value):
    benign, m = sample
    points = torch.cat([benign, torch.full((m, 1), value, dtype=torch.float64)])
    assert statistics(points, "median")[0].item() == value


# --- theorem 2: points -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(st.data())
def test_the_multivariate_medians_stay_within_the_bounds_of_the_proof(data):
    dimensions = data.draw(st.integers(1, 3))
    benign, m = data.draw(poisoned(dimensions))
    malicious = data.draw(malicious_points(m, dimensions))
    n = len(benign) + m
    alone, together = medians(benign), medians(torch.cat([malicious, benign]))

    spread = benign.amax(0) - benign.amin(0)
    assert ((together["coordinate-wise"] - alone["coordinate-wise"]).abs() <= spread).all()

    factor = 1 / np.sqrt(1 - m**2 / (n - m) ** 2)
    reach = (benign - alone["geometric"]).norm(dim=1).max().item()
    moved = (together["geometric"] - alone["geometric"]).norm().item()
    assert moved <= factor * reach * (1 + 1e-6) + 1e-6


def test_two_points_that_nearly_coincide_are_left_in_one_step():
    """Steps between the first two are as small as their distance, and the other points pull just strongly enough."""
    points = torch.tensor([[0.0, 0.0], [0.0, 1.4013e-45], [0.0, 1.0], [1.25, 3.0], [-1.0, 0.0]], dtype=torch.float64)
    result = geometric_median(points)  # a warning would be an error
    apart = torch.cat([torch.zeros(2, 2, dtype=torch.float64), points[2:]])
    torch.testing.assert_close(result, geometric_median(apart))
    assert result.norm() > 1e-3


@given(poisoned(2, majority=True), st.floats(1e3, 1e12))
def test_a_majority_controls_the_multivariate_medians(sample, value):
    benign, m = sample
    points = torch.cat([benign, torch.full((m, 2), value, dtype=torch.float64)])
    for median in medians(points).values():
        torch.testing.assert_close(median, torch.full((2,), value, dtype=torch.float64))


# --- variances -------------------------------------------------------------------------------------------------------


@given(poisoned(), st.floats(1e3, 1e12))
def test_one_sample_moves_the_variance_of_medbn_without_bound(sample, value):
    benign, _ = sample
    points = torch.cat([benign, torch.tensor([[value]], dtype=torch.float64)])
    centre, variance = statistics(points, "median")
    assert benign.min() <= centre.item() <= benign.max()
    assert variance.item() >= (value - 100) ** 2 / len(points)


@given(st.data(), st.sampled_from(["mad", "mad_scaled", "image_median"]))
def test_robust_variances_stay_bounded_below_one_half(data, estimator):
    benign, m = data.draw(poisoned())
    malicious = data.draw(malicious_points(m, 1))
    _, variance = statistics(torch.cat([malicious, benign]), estimator)
    spread = (benign.max() - benign.min()).item()
    # The centre lies among the benign, so more than half of the deviations are at most their spread.
    assert variance.item() <= (1.4826 * spread) ** 2 * (1 + 1e-9)


@given(st.integers(3, 12), st.floats(1, 1e12), st.integers(0, 10_000))
def test_image_median_is_bounded_for_images_of_high_variance(images, size, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(images, 1, 6, generator=g, dtype=torch.float64)
    m = (images - 1) // 2
    benign = x[m:]
    x[:m] *= size
    _, variance = statistics(x, "image_median")
    means, within = benign.mean(2), benign.var(2, correction=0)
    bound = within.max() + (1.4826 * (means.max() - means.min())) ** 2
    assert variance <= bound * (1 + 1e-9)


# --- the geometric median itself -------------------------------------------------------------------------------------


def total_distance(points, z):
    return (points - z).norm(dim=1).sum().item()


NEARLY_A_DATA_POINT = [(0.0, 0.0)] * 3 + [
    (0, -1),
    (1, 0),
    (13, -1),
    (56, 67),
    (69, 30),
    (100, 35),
    (-1, -1),
    (-2, -30),
    (-32, 1),
]
"""The three points at the origin are outweighed by a hair, so that Weiszfeld's steps away from them are tiny."""


@pytest.mark.slow
@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=12))
@example(NEARLY_A_DATA_POINT)
def test_nothing_nearby_is_nearer_than_the_geometric_median(points):
    points = torch.tensor(points, dtype=torch.float64)
    z = geometric_median(points)
    reached = total_distance(points, z)
    g = torch.Generator().manual_seed(0)
    scale = points.std(0, correction=0).max().item() + 1e-3
    rivals = [*points, points.mean(0), points.median(0).values]
    rivals += [z + scale * 10.0**-k * torch.randn(2, generator=g, dtype=torch.float64) for k in range(6)]
    assert all(reached <= total_distance(points, rival) + 1e-7 * (1 + reached) for rival in rivals)


def test_known_geometric_medians():
    square = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0], [4.0, 4.0]])
    torch.testing.assert_close(geometric_median(square), torch.tensor([2.0, 2.0]))
    angles = torch.tensor([0.1, 2.3, 4.4], dtype=torch.float64)
    triangle = torch.stack([angles.cos(), angles.sin()], dim=1)
    z = geometric_median(triangle)  # Fermat's point sees the corners 120 degrees apart
    directions = torch.nn.functional.normalize(triangle - z, dim=1)
    torch.testing.assert_close(directions.sum(0), torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-170, 1e-30, 1.0, 1e30, 1e160])
def test_the_geometric_median_scales(scale):
    points = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0], [5.0, 5.0]], dtype=torch.float64)
    expected = torch.tensor([2.0, 2.0], dtype=torch.float64)
    torch.testing.assert_close(geometric_median(points * scale) / scale, expected)


def test_a_data_point_that_is_the_geometric_median_is_returned_exactly():
    points = torch.tensor([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.1], [0.0, 5.0], [0.0, -7.0]])
    assert geometric_median(points).tolist() == [0.0, 0.0]
    assert geometric_median(torch.tensor([[3.0, 1.0]])).tolist() == [3.0, 1.0]
    assert geometric_median(torch.ones(6, 3)).tolist() == [1.0, 1.0, 1.0]
    heavy = torch.tensor([[0.0, 0.0]] * 5 + [[1.0, 9.0], [4.0, 4.0], [-3.0, 2.0]])
    assert geometric_median(heavy).tolist() == [0.0, 0.0]


def test_reaching_max_steps_is_a_warning():
    g = torch.Generator().manual_seed(0)
    points = torch.randn(9, 3, generator=g, dtype=torch.float64)
    with pytest.warns(RuntimeWarning, match="1 steps"):
        geometric_median(points, max_steps=1)


@pytest.mark.parametrize(
    ("points", "error", "message"),
    [
        (torch.randn(3), ValueError, r"\(n, d\).*\(3,\)"),
        (torch.randn(0, 2), ValueError, r"\(0, 2\)"),
        (torch.ones(3, 2, dtype=torch.int64), TypeError, "int64"),
        (torch.tensor([[torch.nan, 0.0]]), ValueError, "NaN"),
    ],
)
@pytest.mark.parametrize("median", [coordinate_wise_median, geometric_median])
def test_bad_points_are_an_error(points, error, message, median):
    with pytest.raises(error, match=message):
        median(points)
