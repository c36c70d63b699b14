"""Cells: their keys, which stored results are found by, and their form as plain values."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from medbn import bench, data, methods
from medbn.bench import Attack, Cell, Setting


def test_keys_are_those_of_stored_results():
    """Computed once and written down: another key means that every stored result is run again."""
    digits = replace(bench.DIGITS, batch_size=30, malicious=6)
    attack = Attack("indiscriminate", steps=2, step_size=0.1)
    attacked = Cell(digits, "contrast", "tent", "image_median", attack, "instant")
    assert attacked.key("data", "weights") == "059563342a7046eba7e99494bf2e7358"
    options = {"seed": 3, "predict": "before", "options": {"lr": 0.01}, "warm_up": 2}
    clean = Cell(bench.recipes.CIFAR10, "fog", "eata", "median@0.5", None, "cumulative", **options)
    assert clean.key("data", "weights", "clean", "code") == "195e18ae1ac2d6e72f2f6e5a154486ae"


def test_keys_follow_everything_that_determines_the_numbers(tiny):
    cell = next(tiny.cells())
    others = [
        replace(cell, method="tent"),
        replace(cell, estimator="median"),
        replace(cell, corruption="fog"),
        replace(cell, seed=1),
        replace(cell, scenario="cumulative"),
        replace(cell, predict="before"),
        replace(cell, options={"lr": 1.0}),
        replace(cell, attack=None),
        replace(cell, warm_up=1),
        replace(cell, fuse=True),
        replace(cell, attack=replace(cell.attack, steps=3)),
        replace(cell, setting=replace(cell.setting, batch_size=31)),
        replace(cell, setting=replace(cell.setting, malicious=7)),
        replace(cell, setting=replace(cell.setting, severity=4)),
    ]
    keys = {cell.key("d", "w"), cell.key("e", "w"), cell.key("d", "v"), *(one.key("d", "w") for one in others)}
    keys |= {cell.key("d", "w", "c"), cell.key("d", "w", "", "code")}
    assert len(keys) == 5 + len(others)
    moved = replace(cell, setting=replace(cell.setting, weights="elsewhere.safetensors"))
    assert moved.key("d", "w") == cell.key("d", "w")


def test_a_version_above_one_enters_the_key(monkeypatch, tiny):
    """Presets are part of a cell by name only, so that other defaults would otherwise be given stored results."""
    cell = replace(next(tiny.cells()), corruption="fog")
    first = cell.key("d", "w")
    monkeypatch.setattr(methods.get(cell.method), "version", 2)
    second = cell.key("d", "w")
    fog = data.corruptions.get("fog")
    monkeypatch.setitem(data.corruptions.base._registry._values, "fog", replace(fog, version=2))
    assert len({first, second, cell.key("d", "w")}) == 3
    monkeypatch.undo()
    assert cell.key("d", "w") == first


def test_a_cell_survives_json_and_may_come_from_before_there_was_a_warm_up(tiny):
    cell = next(tiny.cells())
    values = json.loads(json.dumps(cell.to_dict()))
    assert Cell.from_dict(values) == cell
    del values["warm_up"], values["fuse"]
    assert Cell.from_dict(values) == cell


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Attack("targetted").check(), "targeted"),
        (lambda: Attack(gradient="exakt").check(), "exact"),
        (lambda: Attack(steps=-1).check(), "steps"),
        (lambda: Attack(steps="5"), "steps"),
        (lambda: Setting("digits", "resnet-small", malicious=200), "200"),
        (lambda: Setting("digits", "resnet-small", severity=6), "severity"),
        (lambda: Setting("digits", "resnet-small", preset="mnist"), "mnist"),
    ],
)
def test_wrong_values_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()
