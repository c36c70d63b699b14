"""Silhouettes beside scikit-learn's and by hand; principal components beside a singular value decomposition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from medbn.analysis.separation import pairwise_distances, principal_components, separation, silhouettes


def test_a_small_case_by_hand():
    """On a line at 0, 1 and 4, 6: a = 1, 1, 2, 2 and b = 5, 4, 3.5, 5.5."""
    distances = pairwise_distances(torch.tensor([[0.0], [1.0], [4.0], [6.0]]))
    expected = np.mean([4 / 5, 3 / 4, 1.5 / 3.5, 3.5 / 5.5])
    assert silhouettes(distances, torch.tensor([[True, True, False, False]])).item() == pytest.approx(expected)


@pytest.mark.parametrize("malicious", [1, 2, 7, 29])
def test_silhouettes_are_those_of_scikit_learn(malicious):
    metrics = pytest.importorskip("sklearn.metrics")
    x = torch.randn(30, 4, 3, 3)
    x[:malicious] += 0.7
    groups = torch.stack([torch.arange(30) < malicious, torch.randperm(30) < malicious])
    expected = [metrics.silhouette_score(x.flatten(1).numpy(), group.numpy()) for group in groups]
    np.testing.assert_allclose(silhouettes(pairwise_distances(x), groups), expected, rtol=1e-5)


def test_only_groups_that_are_apart_are_above_the_interval():
    x, malicious = torch.randn(60, 5), torch.arange(60) >= 48
    together = separation(x, malicious)
    assert together.low <= together.silhouette <= together.high
    assert not together.separate
    apart = separation(x + 9 * malicious.unsqueeze(1), malicious)
    assert apart.separate
    assert apart.silhouette > 0.7


def test_the_interval_depends_on_the_seed_alone():
    x, malicious = torch.randn(20, 5), torch.arange(20) >= 15
    assert separation(x, malicious, seed=3) == separation(x, malicious, seed=3)
    assert separation(x, malicious, seed=3) != separation(x, malicious, seed=4)


def test_equal_images_have_no_silhouette():
    assert separation(torch.ones(6, 2), torch.arange(6) > 3).silhouette == 0


def test_principal_components_are_those_of_a_decomposition():
    x = torch.randn(12, 40, dtype=torch.float64)
    centred = (x - x.mean(0)).numpy()
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    scores = principal_components(x, 5).numpy()
    np.testing.assert_allclose(np.abs(scores), np.abs(left[:, :5] * values[:5]), atol=1e-9)
    assert (scores[np.abs(scores).argmax(0), range(5)] > 0).all()
    assert principal_components(x, 50).shape == (12, 11)
