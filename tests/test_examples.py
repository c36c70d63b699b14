"""The examples run in seconds and show what they say."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[1] / "examples"


def run(name: str, *arguments: str) -> None:
    runpy.run_path(str(FOLDER / f"{name}.py"))["main"](list(arguments))


def errors(line: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+\.\d+", line)]


@pytest.mark.slow
def test_batch_statistics_remove_most_of_the_error_of_contrast(capsys):
    run("corruption_errors", "--corruptions", "contrast", "frost", "--device", "cpu")
    titles, contrast, frost, average = capsys.readouterr().out.splitlines()
    assert titles.split() == ["Source", "TeBN", "MedBN", "image_median"]
    source, *adapted = errors(contrast)
    assert max(adapted) < source / 2
    pairs = zip(errors(contrast), errors(frost), strict=True)
    assert errors(average) == pytest.approx([sum(pair) / 2 for pair in pairs], abs=0.01)


def test_the_grid_has_fifteen_rows_of_five_images(tmp_path):
    image = pytest.importorskip("PIL.Image")
    run("corruption_grid", "--cell", "16", "--out", str(tmp_path / "digit.png"))
    digit = image.open(tmp_path / "digit.png")
    assert digit.size == (3 * (5 * (16 + 4) + 12), 5 * (16 + 4 + 22))
    run("corruption_grid", "--cell", "16", "--photo", str(tmp_path / "digit.png"), "--out", str(tmp_path / "photo.png"))
    photo = image.open(tmp_path / "photo.png")
    assert photo.size == digit.size
    assert photo.tobytes() != digit.tobytes()


def test_images_of_ones_own_are_corrupted_and_adapted_to(capsys):
    pytest.importorskip("PIL.Image")
    run("own_images")
    count, source, *adapted = capsys.readouterr().out.splitlines()
    assert count == "100 images of 10 classes"
    assert all(errors(line)[0] < errors(source)[0] for line in adapted)


@pytest.mark.slow
def test_two_processes_have_the_error_of_one():
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    script = str(FOLDER / "several_processes.py")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    # On a machine with a GPU, both processes would share it, which NCCL refuses.
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    printed = []
    for count in ("1", "2"):
        for _ in range(2):  # on a busy machine the launcher's own connections fail now and then
            done = subprocess.run([*launch, count, script], env=environment, capture_output=True, text=True)
            if done.returncode == 0:
                break
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert printed[1].startswith("2 processes, 400 images")
    assert errors(printed[0]) == pytest.approx(errors(printed[1]), abs=0.3)  # one image
    assert 5 < errors(printed[1])[0] < 30


def test_every_example_is_run_by_a_test():
    tested = {"corruption_errors", "corruption_grid", "own_images", "several_processes"}
    tested |= {"own_method"}  # tests/methods/test_own_method.py
    tested |= {"ray_serve_service", "litserve_service"}  # tests/test_serving_examples.py
    assert {file.stem for file in FOLDER.glob("*.py")} == tested
