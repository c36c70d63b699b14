import numpy as np
import pytest
import torch
from torch import nn

import medbn
from medbn import analysis
from medbn.analysis.landscape import margin, margins_along

from .conftest import state_values

pytestmark = pytest.mark.slow  # the first test attacks batches


def test_margin_is_the_lead_of_the_target_class():
    logits = torch.tensor([[1.0, 4.0, 2.5], [0.0, 0.0, 0.0]])
    assert margin(logits, 0, 2).item() == pytest.approx(-1.5)
    assert margin(logits, 0, 1).item() == pytest.approx(1.5)
    assert margin(logits, 1, 0).item() == 0


def test_margins_follow_the_mean_of_a_batch_in_closed_form():
    """One feature, two classes: the target's logit is its z-score, which the attacker moves by moving the mean."""
    model = nn.Sequential(nn.BatchNorm1d(1, eps=1e-12), nn.Linear(1, 2, bias=False))
    model[1].weight.data = torch.tensor([[0.0], [1.0]])
    tta = medbn.adapt(model.double(), "tebn", "mean")
    batch = torch.tensor([[0.5], [0.2], [0.4], [0.3]], dtype=torch.float64)
    direction = torch.tensor([[0.0], [0.0], [0.0], [1.0]], dtype=torch.float64)
    distances = [-1.0, 0.0, 0.25, 0.5]
    expected = []
    for distance in distances:
        values = torch.tensor([0.5, 0.2, 0.4, max(0.0, 0.3 + distance)], dtype=torch.float64)  # pixels stay in [0, 1]
        expected.append(((values[0] - values.mean()) / values.std(correction=0)).item())
    assert margins_along(tta, batch, direction, distances, 0, 1) == pytest.approx(expected)


def test_measuring_margins_changes_nothing(device):
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))
    tta = medbn.adapt(model.to(device), "sema", "median")
    before = state_values(tta)
    batch = torch.rand(5, 1, 6, 6, device=device)
    margins_along(tta, batch, torch.ones_like(batch), [0.0, 0.5], 0, 1)
    assert state_values(tta) == before


@pytest.fixture(scope="module")
def numbers(experiment):
    return analysis.measure("landscape", experiment)


def test_a_line_begins_at_grey_images_and_ends_at_those_of_the_attack(experiment, numbers):
    cell = experiment.cell("median", gradient="smooth")
    images, labels = experiment.batch(cell)
    grey = images.clone()
    grey[experiment.malicious] = 0.5
    target = int(labels[0] + 1) % 10
    rows = numbers.select(estimator="median", gradient="smooth")
    for batch, row in ((grey, rows[0]), (experiment.poisoned(cell), rows[-1])):
        logits = experiment.adapter(cell)(batch)[0]
        others = torch.cat([logits[:target], logits[target + 1 :]])
        assert row["margin"] == pytest.approx((logits[target] - others.max()).item(), rel=1e-4)
    assert [row["distance"] for row in rows] == pytest.approx(np.linspace(0, 1, 21).tolist())


def test_each_panel_has_a_line_per_gradient_and_the_mean_has_one(numbers):
    figure_class = pytest.importorskip("matplotlib.figure").Figure
    figure = figure_class()
    analysis.draw(numbers, figure, analysis.THEMES["light"])
    assert [axis.get_title() for axis in figure.axes] == ["BatchNorm", "MedBN", "image_median"]
    for axis, count in zip(figure.axes, (1, 2, 2), strict=True):
        lines = [line for line in axis.lines if len(line.get_xdata()) == 21]
        assert len(lines) == count
        assert all(np.isfinite(line.get_ydata()).all() for line in lines)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert [label.split()[0] for label in labels] == ["exact", "smooth", "hit"]
