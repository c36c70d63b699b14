"""The panels of figures 4, 8 and 9: silhouettes of the layers' inputs, and one embedding each."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import numpy as np
import pytest
import torch

import medbn
from medbn import analysis

pytestmark = pytest.mark.slow  # the first test attacks batches

SHOWN = ["bn1", "layer1.0.bn2", "layer2.0.bn2", "layer3.0.bn2"]


@pytest.fixture(scope="module")
def numbers(settings):
    two = replace(settings, estimators=("mean", "median"), epsilons=(1.0,))
    return analysis.measure("tsne", analysis.Experiment(two))


def test_silhouettes_are_of_the_features_before_each_layer(numbers, experiment):
    metrics = pytest.importorskip("sklearn.metrics")
    cell = experiment.cell("median")
    adapter, poisoned = experiment.adapter(cell), experiment.poisoned(cell)
    with medbn.observe(adapter.model) as observations, torch.no_grad():
        adapter(poisoned)
        inputs = {one.name: one.input.flatten(1).double().numpy() for one in observations}
    for layer, x in inputs.items():
        (row,) = numbers.select(estimator="median", layer=layer)
        assert row["silhouette"] == pytest.approx(metrics.silhouette_score(x, ~experiment.benign.numpy()), abs=1e-4)
        assert row["random_low"] < row["random_high"]
        assert row["separate"] == (row["silhouette"] > row["random_high"])


def test_every_panel_has_a_point_per_image(numbers):
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    figure = pytest.importorskip("matplotlib.figure").Figure()
    analysis.draw(numbers, figure, analysis.THEMES["light"])
    assert len(figure.axes) == 2 * len(SHOWN)
    for axis in figure.axes:
        points = np.concatenate([drawn.get_offsets().data for drawn in axis.collections])
        assert len(points) == 40
        assert np.isfinite(points).all()
        assert [len(drawn.get_offsets()) for drawn in axis.collections[:2]] == [32, 8]
    assert [panel["layer"] for panel in numbers.details["panels"][: len(SHOWN)]] == SHOWN


def test_many_layers_are_drawn_in_bands_of_a_page(numbers):
    pytest.importorskip("sklearn")
    figure = pytest.importorskip("matplotlib.figure").Figure()
    panel = numbers.details["panels"][0]
    layers = [f"bn{number}" for number in range(9)]
    rows = [{**numbers.rows[0], "layer": layer} for layer in layers]
    many = replace(numbers, rows=rows, details={**numbers.details, "panels": [{**panel, "layer": la} for la in layers]})
    analysis.draw(many, figure, analysis.THEMES["light"])
    assert [axis.axison for axis in figure.axes] == 9 * [True] + [False]  # two rows of five
    assert [text.get_text() for axis in figure.axes for text in axis.texts] == layers
    assert analysis.get("tsne").size(many, analysis.THEMES["light"])[0] <= 7


def test_embeddings_are_repeatable(settings, numbers):
    pytest.importorskip("sklearn")
    again = replace(settings, estimators=("mean", "median"), epsilons=(1.0,))
    assert analysis.measure("tsne", analysis.Experiment(again)).details == numbers.details


def test_without_scikit_learn_the_numbers_are_completed_elsewhere(settings, numbers, monkeypatch):
    pytest.importorskip("sklearn")
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "sklearn" else find_spec(name))
    two = replace(settings, estimators=("mean", "median"), epsilons=(1.0,))
    measured = analysis.measure("tsne", analysis.Experiment(two))
    assert measured.rows == numbers.rows
    assert not any("points" in panel for panel in measured.details["panels"])
    with pytest.raises(ImportError, match="scikit-learn"):
        analysis.draw(measured, None, analysis.THEMES["light"])

    brought = analysis.Numbers.from_json(measured.to_json())  # to a machine that has it
    monkeypatch.undo()
    assert analysis.complete(brought).details == numbers.details
