import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import medbn
from medbn import analysis
from medbn.analysis.filters import Passed, count_passed
from medbn.analysis.registry import numbers_key

# Entropies of nearly 0, nearly 0, 0.37 and nearly ln 3 = 1.10; confidences of nearly 1, nearly 1, 0.91 and 0.36.
LOGITS = torch.tensor([[9.0, 0.0, 0.0], [0.0, 9.0, 0.0], [3.0, 0.0, 0.0], [0.1, 0.0, 0.0]])
BENIGN = torch.tensor([True, False, False, True])


def adapt(method, **options):
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))
    return medbn.adapt(model, method, "mean", **options)


def test_filters_are_counted_one_after_the_other():
    eta = adapt("eta")
    eta.memory["prediction"] = torch.tensor([1.0, 0.0, 0.0])
    methods = {"ETA": eta, "SoTTA": adapt("sotta", frozen=()), "TENT": adapt("tent")}
    assert count_passed(methods, LOGITS, BENIGN) == {
        ("ETA", "entropy"): Passed(3, 2),
        ("ETA", "redundancy"): Passed(1, 1),
        ("SoTTA", "confidence"): Passed(2, 1),
    }


@pytest.fixture(scope="module")
def numbers(experiment):
    return analysis.measure("filters", experiment)


def test_shares_count_what_the_methods_themselves_let_pass(experiment, numbers):
    """The rules once more in plain torch, on the logits of a converted model that has never been an adapter."""
    assert len(numbers.rows) == 2 * 3
    for objective in ("targeted", "indiscriminate"):
        cell = experiment.cell("mean", objective=objective, corruption="contrast")
        with torch.no_grad():
            model = medbn.convert(copy.deepcopy(experiment.load(cell).model), estimator="mean").eval()
            probabilities = model(experiment.poisoned(cell)).double().softmax(dim=1)
        entropy = -(probabilities * probabilities.log()).sum(dim=1)
        masks = {"entropy": entropy < 0.4 * math.log(10), "confidence": probabilities.amax(dim=1) >= 0.99}
        for rule, mask in masks.items():
            (row,) = numbers.select(objective=objective, filter=rule)
            assert row["passed"] == int(mask.sum())
            assert row["malicious"] == int(mask[32:].sum())
            assert row["share"] == (
                pytest.approx(row["malicious"] / row["passed"], rel=1e-5) if row["passed"] else None
            )


def test_redundancy_lets_pass_no_more_than_entropy_alone(numbers):
    for objective in ("targeted", "indiscriminate"):
        both, entropy = (numbers.select(objective=objective, filter=f)[0] for f in ("redundancy", "entropy"))
        assert both["passed"] <= entropy["passed"]
        assert both["malicious"] <= entropy["malicious"]


def test_each_panel_has_a_bar_per_filter_and_a_line_at_what_came_in(numbers):
    figure_class = pytest.importorskip("matplotlib.figure").Figure
    figure = figure_class()
    analysis.draw(numbers, figure, analysis.THEMES["light"])
    assert len(figure.axes) == 2
    for axis, objective in zip(figure.axes, ("targeted", "indiscriminate"), strict=True):
        heights = [bar.get_height() for bar in axis.patches]
        assert heights == pytest.approx([100 * (row["share"] or 0) for row in numbers.select(objective=objective)])
        assert list(axis.lines[0].get_ydata()) == [20.0, 20.0]
    assert len(figure.legends[0].get_texts()) == 4


@pytest.mark.parametrize(("figure", "method"), [("filters", "sotta"), ("timeline", "past")])
def test_stored_numbers_are_measured_again_for_another_version_of_a_method(experiment, monkeypatch, figure, method):
    before = numbers_key(figure, experiment)
    assert numbers_key(figure, experiment) == before
    monkeypatch.setattr(medbn.methods.get(method), "version", 99)
    assert numbers_key(figure, experiment) != before


def test_stored_numbers_depend_on_every_corruption_that_is_shown(experiment):
    both = analysis.Experiment(replace(experiment.settings, corruptions=("contrast", "fog")))
    assert {cell.corruption for cell in analysis.get("filters").cells(both)} == {"contrast", "fog"}


@pytest.mark.slow
def test_a_corruption_has_the_same_numbers_alone_and_after_another(experiment, numbers):
    settings = replace(experiment.settings, corruptions=("fog", "contrast"))
    both = analysis.measure("filters", analysis.Experiment(settings))
    assert both.select(corruption="contrast") == numbers.rows


def test_the_caption_says_where_filters_let_all_malicious_images_pass_or_none(numbers):
    caption = analysis.get("filters").caption
    assert {row["malicious"] for row in numbers.rows} <= {0, 8}  # all start grey and stay the same image
    assert "or none" in caption(numbers)
    half = [{**row, "malicious": 4} for row in numbers.rows]
    assert "or none" not in caption(replace(numbers, rows=half))


def test_one_objective_can_be_measured_alone(experiment, numbers):
    settings = replace(experiment.settings, objectives=("indiscriminate",))
    alone = analysis.measure("filters", analysis.Experiment(settings))
    assert alone.rows == numbers.select(objective="indiscriminate")
    assert alone.settings["objective"] == "indiscriminate"
