"""Corrupted segmentation datasets on disk are those that are corrupted as they are read."""

from __future__ import annotations

import json
from importlib import import_module

import numpy as np
import pytest
import torch

from medbn import data
from medbn.cli import main

from .trees import draw, photograph, save

NAMES = ("contrast", "elastic_transform")


@pytest.fixture
def clean():
    return data.load_segmentation("scenes").subset(range(5))


@pytest.fixture
def generated(clean, tmp_path):
    data.generate(clean, tmp_path / "some-c", names=NAMES, seed=4)
    return tmp_path / "some-c"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("severity", [1, 5])
def test_files_have_the_bits_of_corrupting_as_one_reads(clean, generated, name, severity):
    stored = data.load_segmentation(generated, corruption=name, severity=severity)
    read = data.corrupt_segmentation(clean, name, severity, seed=4)
    for part in (range(5), [4, 0, 2]):
        assert all(torch.equal(a, b) for a, b in zip(stored.read(part), read.read(part), strict=True))
    assert (stored.classes, stored.colours, stored.scored) == (clean.classes, clean.colours, clean.scored)
    assert stored.name == f"some-c/{name}/{severity}"
    assert data.task_of(generated) == "segmentation"
    assert len({data.load_segmentation(generated, corruption=name, severity=s).fingerprint for s in (1, 5)}) == 2


def test_the_size_of_a_task_does_not_change_the_files(clean, generated, tmp_path, monkeypatch):
    monkeypatch.setattr(import_module("medbn.data.generate"), "_BYTES_PER_TASK", 2 * 3 * 64 * 96)
    data.generate(clean, tmp_path / "again", names=NAMES, seed=4)
    for file in generated.iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes()


def test_a_second_call_continues_and_another_dataset_is_refused(clean, generated):
    assert data.generate(clean, generated, names=["fog", *NAMES], seed=4).written == ("fog",)
    with pytest.raises(FileExistsError, match="another"):
        data.generate(clean.subset([0, 1]), generated, names=NAMES, seed=4)


def test_errors_name_the_file(generated):
    with pytest.raises(ValueError, match=r"segmentation.*load_segmentation"):
        data.load(generated, corruption="contrast")
    with pytest.raises(ValueError, match=r"needs a corruption.*contrast"):
        data.load_segmentation(generated)
    with pytest.raises(FileNotFoundError, match=r"fog\.npy"):
        data.load_segmentation(generated, corruption="fog")
    labels = np.load(generated / "labels.npy")
    labels[2, 0, 0] = 13
    np.save(generated / "labels.npy", labels)
    with pytest.raises(ValueError, match=r"labels\.npy has the label 13.*0 to 12"):
        data.load_segmentation(generated, corruption="contrast").read(range(5))
    np.save(generated / "elastic_transform-labels.npy", np.zeros((5, 64, 96), dtype=np.uint8))
    with pytest.raises(ValueError, match=r"elastic_transform-labels\.npy.*25"):
        data.load_segmentation(generated, corruption="elastic_transform")


@pytest.mark.parametrize("change", [{"colours": [[1, 2]]}, {"scored": None}, {"colours": 3}])
def test_a_damaged_manifest_is_named(generated, change):
    file = generated / "medbn.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(ValueError, match=r"medbn\.json is damaged"):
        data.load_segmentation(generated, corruption="contrast")


def test_generate_on_the_command_line(tmp_path, capsys):
    pytest.importorskip("PIL.Image")
    rng, root = np.random.default_rng(0), tmp_path / "root"
    for stem in ("a", "b"):
        save(tmp_path / "own" / "images" / f"{stem}.png", photograph(rng, 24, 40))
        save(tmp_path / "own" / "labels" / f"{stem}.png", draw(rng, [*range(19), 255], 24, 40))
    (tmp_path / "own" / "classes.toml").write_text('classes = "cityscapes"')
    options = ["--size", "12x20", "--corruptions", "contrast", "--jobs", "1", "--root", str(root)]
    assert main(["data", "generate", "own-c", "--from", str(tmp_path / "own"), *options]) == 0
    dataset = data.load_segmentation(root / "own-c", corruption="contrast")
    assert dataset.size == (12, 20)
    assert json.loads((root / "own-c" / "medbn.json").read_text())["task"] == "segmentation"
    assert main(["data", "info", str(root / "own-c"), "--corruption", "contrast"]) == 0
    assert "segmentation" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data", "generate", "cityscapes-c", "--root", "{}"], "medbn data info cityscapes"),
        (["data", "generate", "scenes-c", "--size", "8x8x8"], "HEIGHTxWIDTH"),
        (["data", "generate", "scenes-c", "--size", "32x48"], "no option 'size'"),
        (["data", "fetch", "cityscapes", "--root", "{}"], "medbn data info cityscapes"),
        (["data", "info", "cityscapes-c", "--root", "{}"], "medbn data generate cityscapes-c"),
    ],
)
def test_wrong_arguments_are_one_line(tmp_path, refusal, arguments, message):
    assert message in refusal([argument.format(tmp_path) for argument in arguments])


def test_info_says_how_to_get_what_must_be_requested(tmp_path, capsys):
    assert main(["data", "info", "cityscapes", "--root", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "https://www.cityscapes-dataset.com" in shown
    assert str(tmp_path / "cityscapes") in shown


def test_check_reads_every_file(tmp_path, capsys, refusal):
    pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for number in range(20):
        save(tmp_path / "images" / f"{number}.png", photograph(rng))
        save(tmp_path / "labels" / f"{number}.png", np.array([[0, 0, 1], [0, 2, 255]], np.uint8).repeat(6, 0))
    (tmp_path / "classes.toml").write_text('classes = "camvid"')
    refusal_message = refusal(["data", "check", str(tmp_path)])
    assert "12 × 3" in refusal_message
    for number in range(20):
        save(tmp_path / "labels" / f"{number}.png", np.repeat([0, 0, 1, 255], 60).reshape(12, 20).astype(np.uint8))
    assert main(["data", "check", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "50.00 %" in shown
    assert "25.00 %" in shown
    save(tmp_path / "labels" / "7.png", np.full((12, 20), 99, dtype=np.uint8))
    assert "7.png" in refusal(["data", "check", str(tmp_path)])
