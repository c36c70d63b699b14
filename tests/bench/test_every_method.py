"""The recipes of the methods that the paper does not have, and the streams that they need."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from medbn import bench, data
from medbn.bench import recipes, time_estimate
from medbn.bench.loading import load_stream


def test_a_stream_sorted_by_label_has_the_same_images():
    one = load_stream("digits", "fog", 5, None, 3, None)
    first = one.subset(range(50))
    by_label = load_stream("digits", "fog", 5, None, 3, None, None, 50, True)
    assert by_label.labels.tolist() == sorted(first.labels.tolist())
    images, labels = first.read_range(range(50))
    order = labels.argsort(stable=True)
    assert torch.equal(by_label.read_range(range(50))[0], images[order])


def test_each_corruption_of_a_continual_stream_is_sorted_by_itself():
    stream = load_stream("digits", "continual", 5, "synthetic", 1, None, None, 6, True)
    parts = stream.labels.view(15, 6)
    assert torch.equal(parts, parts.sort(dim=1).values)
    assert len(parts.unique(dim=0)) > 1  # every corruption begins with other images


def test_dense_labels_have_no_order():
    with pytest.raises(ValueError, match="segmentation"):
        load_stream("scenes", "none", 3, None, 0, None, None, None, True)


def test_a_stream_of_some_images_of_one_corruption_is_counted():
    setting = replace(bench.DIGITS, batch_size=20, malicious=0, per_corruption=50)
    recipe = replace(
        recipes.get("every-method-no-attack"), settings=(setting,), methods=("tebn",), corruptions=("fog",)
    )
    assert {time_estimate.count_batches(cell, None) for cell in recipe.cells()} == {2}
    assert len(load_stream("digits", "fog", 5, None, 0, None, None, 50)) == 50


def test_a_method_that_estimates_nothing_has_one_row():
    cells = list(recipes.get("every-method-sorted").cells())
    for method, count in (("source", 1), ("lame", 1), ("rotta", 3), ("roid", 3)):
        assert len({cell.estimator for cell in cells if cell.method == method}) == count


def test_the_protocol_for_every_method():
    attacked = recipes.get("every-method")
    assert attacked.scenario == "instant"
    assert [(a.objective, a.steps, a.step_size) for a in attacked.attacks[::3]] == [
        ("targeted", 100, 1 / 255),
        ("indiscriminate", 100, 1 / 255),
    ]
    old = {*bench.recipes.get("no-attack").methods, "eata", "past"}
    new = set(attacked.methods)
    assert not new & old
    assert {"cotta", "rotta", "deyo", "roid", "note", "lame", "alpha_bn"} <= new
    (continual,) = recipes.get("every-method-continual").settings
    assert (continual.per_corruption, continual.malicious, continual.by_label) == (2000, 0, False)
    assert {cell.corruption for cell in recipes.get("every-method-continual").cells()} == {"continual"}
    (by_label,) = recipes.get("every-method-sorted").settings
    assert by_label == replace(continual, by_label=True)
    assert {cell.corruption for cell in recipes.get("every-method-sorted").cells()} == set(data.corruptions.NAMES)
