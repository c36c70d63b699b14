"""What the filters of methods let pass, by hand from their thresholds."""

import pytest
import torch
from torch import nn

import medbn
from medbn.methods import Predictions

LOGITS = torch.tensor(
    [
        [9.0, 0.0, 0.0],  # certain
        [0.0, 9.0, 0.0],  # certain, of another class
        [3.0, 0.0, 0.0],  # entropy 0.37 of at most ln 3 = 1.10, confidence 0.91
        [0.1, 0.0, 0.0],  # nearly uniform
        [torch.nan, 0.0, 0.0],
    ]
)


def adapt(method, **options):
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))
    return medbn.adapt(model, method, "mean", **options)


def passed(method, **memory):
    masks = method.filters(Predictions.of(LOGITS), {**method.memory, **memory})
    return {name: mask.nonzero().flatten().tolist() for name, mask in masks.items()}


@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        ("tent", {}, {}),
        ("eta", {}, {"entropy": [0, 1, 2], "redundancy": [0, 1, 2, 3]}),
        ("eta", {"margin": 0.1}, {"entropy": [0, 1], "redundancy": [0, 1, 2, 3]}),
        ("sar", {"frozen": ()}, {"entropy": [0, 1, 2]}),
        ("sotta", {"frozen": ()}, {"confidence": [0, 1]}),
        ("sotta", {"frozen": (), "confidence": 0.9}, {"confidence": [0, 1, 2]}),
    ],
)
def test_filters_follow_the_thresholds(method, options, expected):
    assert passed(adapt(method, **options)) == expected


def test_what_is_like_the_average_prediction_is_redundant():
    average = torch.tensor([1.0, 0.0, 0.0])
    assert passed(adapt("eta"), prediction=average)["redundancy"] == [1]
    assert passed(adapt("eta", redundancy=0.7), prediction=average)["redundancy"] == [
        1,
        3,
    ]  # the nearly uniform one: 0.62


def test_a_step_learns_from_what_the_filters_let_pass():
    """ETA's average prediction moves by the mean prediction of the samples that all its filters let pass."""
    images = torch.rand(12, 1, 6, 6)
    eta = adapt("eta", margin=0.999, redundancy=0.999)
    for _ in range(2):
        predictions = Predictions.of(eta.surrogate()(images).detach())
        chosen = torch.stack(list(eta.filters(predictions, eta.memory).values())).all(dim=0)
        old = eta.memory["prediction"]
        eta(images)
        new = predictions.probabilities()[chosen].mean(dim=0)
        torch.testing.assert_close(eta.memory["prediction"], new if old is None else 0.9 * old + 0.1 * new)
    assert 0 < int(chosen.sum()) < len(images)
