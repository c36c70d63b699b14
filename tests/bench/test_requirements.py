"""What is missing is named before anything runs, with a command that gets it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from medbn import bench


def test_everything_that_is_missing_is_named_before_anything_runs(tmp_path):
    recipe = bench.recipes.get("cumulative")
    with pytest.raises(bench.MissingError) as error:
        bench.run(recipe, tmp_path / "x.db", place=bench.Place(root=str(tmp_path)))
    text = str(error.value)
    for command in ("medbn data generate cifar10-c", "medbn data fetch cifar10", "medbn train resnet26 --data cifar10"):
        assert command in text
    assert "\n" not in text
    assert not (tmp_path / "x.db").exists()


@pytest.mark.parametrize(
    ("setting", "command"),
    [
        ({}, "--data cifar10 --out {}/models/resnet26-cifar10.safetensors"),
        ({"weights": "no file.pt"}, "--data cifar10 --out 'no file.safetensors', and then name no file.safetensors"),
        ({"clean": None, "weights": "no.safetensors"}, "--data cifar10 --out no.safetensors;"),
    ],
)
def test_missing_weights_come_with_a_command_that_makes_them(setting, command, tmp_path):
    (*_, line) = bench.missing_requirements(replace(bench.recipes.CIFAR10, **setting), (), tmp_path)
    assert f"medbn train resnet26 {command.format(tmp_path)}" in line


def test_models_for_streets_are_made_at_a_size_and_from_a_backbone(tmp_path):
    setting = bench.recipes.get("segmentation-targeted").settings[0]
    (*_, line) = bench.missing_requirements(setting, (), tmp_path)
    assert "medbn train deeplabv3plus-resnet50 --data cityscapes" in line
    assert "--size" in line
    assert "--backbone" in line


def test_the_shipped_model_and_data_need_nothing(tmp_path):
    assert bench.missing_requirements(bench.DIGITS, ("tebn", "eata"), tmp_path) == []


def test_eata_needs_clean_images(tmp_path):
    setting = replace(bench.DIGITS, data=str(tmp_path / "photos"), clean=None)
    folder, clean = bench.missing_requirements(setting, ("eata",), tmp_path)
    assert str(tmp_path / "photos") in folder
    assert "--clean" in clean
