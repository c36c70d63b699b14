"""``medbn speed`` as it is used: what it prints, writes, keeps and refuses."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import threading

import pytest
import torch

import medbn
from medbn import speed
from medbn.cli import main

BARE = """
import sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("rich", "safetensors", "PIL", "pooch", "tomli", "pytest", "hypothesis", "scipy"):
            raise ImportError(f"{name} is not on this machine")

sys.meta_path.insert(0, Nothing())
from medbn.cli import main
sys.exit(main(["speed", "memory", "--device", "cpu", "--shapes", "4x3x5x5"]))
"""
TINY = ["--device", "cpu", "--shapes", "4x3x5x5", "2x3x4x4", "--rounds", "2", "--estimators", "mean", "median"]


def test_speed_prints_tables_and_writes_all_measurements(tmp_path, capsys, monkeypatch):
    path = tmp_path / "x.json"
    arguments = ["speed", "layer", "memory", *TINY, "--layouts", "nchw", "--json", str(path)]
    monkeypatch.setattr(sys, "argv", ["/somewhere/medbn", *arguments])
    assert main(arguments) == 0
    printed = capsys.readouterr()
    for expected in (
        torch.__version__,
        f"{torch.get_num_threads()} threads",
        "layer: time / BatchNorm's, nchw, forward, float32, wall clock",
        "4×3×5×5",
        "geometric mean",
        "median, reference",
        "memory: output + tensors saved",
    ):
        assert expected in printed.out
    assert "memory 100 %" in printed.err
    written = json.loads(path.read_text())
    assert written["finished"] is True
    assert written["medbn"] == medbn.__version__
    assert written["command"] == shlex.join(["medbn", *arguments])
    assert written["date"][:2] == "20"
    assert written["machine"]["torch"] == torch.__version__
    assert written["machine"]["paths"] == {"median": medbn.kernels.selected(torch.zeros(2, 2, 2, 2))}
    assert written["settings"]["shapes"] == [[4, 3, 5, 5], [2, 3, 4, 4]]
    assert list(written["parts"]) == ["layer", "memory"]
    for row in written["parts"]["layer"]:
        assert len(row["ratios"]) == (2 if row["path"] == "reference" else 4)
        pairs = zip(row["seconds"], row["batch_norm_seconds"], strict=True)
        assert row["ratios"] == pytest.approx([a / b for a, b in pairs], rel=1e-4)
    assert {tuple(row["shape"]) for row in written["parts"]["memory"]} == {(4, 3, 5, 5), (2, 3, 4, 4)}


@pytest.mark.parametrize(("error", "expected"), [(KeyboardInterrupt(), 130), (RuntimeError("out of luck"), 2)])
def test_measurements_are_kept_after_an_error(error, expected, tmp_path, capsys, monkeypatch):
    whole = speed.PARTS["layer"]

    def measure(settings, case):
        if case["direction"] != "forward":
            raise error
        return whole.measure(settings, case)

    monkeypatch.setitem(speed.PARTS, "layer", whole._replace(measure=measure))
    path = tmp_path / "x.json"
    try:
        code = main(["speed", "layer", "memory", *TINY, "--json", str(path)])
    except SystemExit as stop:
        code = stop.code
    printed = capsys.readouterr()
    assert code == expected
    assert "Traceback" not in printed.err
    assert ("stopped" if expected == 130 else "out of luck") in printed.err
    assert "nchw, forward, float32" in printed.out
    written = json.loads(path.read_text())
    assert written["finished"] is False
    assert {row["direction"] for row in written["parts"]["layer"]} == {"forward"}
    assert {tuple(row["shape"]) for row in written["parts"]["layer"]} == {(4, 3, 5, 5), (2, 3, 4, 4)}


def test_every_measurement_is_written_at_once(tmp_path, monkeypatch):
    """A run that is killed loses nothing."""
    path, seen = tmp_path / "x.json", []
    whole = speed.PARTS["memory"]

    def measure(settings, case):
        seen.append(len(json.loads(path.read_text())["parts"].get("memory", [])))
        return whole.measure(settings, case)[:1]

    monkeypatch.setitem(speed.PARTS, "memory", whole._replace(measure=measure))
    assert main(["speed", "memory", *TINY, "--json", str(path)]) == 0
    assert seen == [0, 1, 2, 3]


def test_no_other_thread_runs_while_times_are_measured(monkeypatch, capsys):
    """On a terminal too, where a progress bar would have a thread."""
    before, during = threading.active_count(), []
    whole = speed.PARTS["memory"]

    def measure(settings, case):
        during.append(threading.active_count())
        return whole.measure(settings, case)

    monkeypatch.setitem(speed.PARTS, "memory", whole._replace(measure=measure))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["speed", "memory", *TINY]) == 0
    assert set(during) == {before}
    assert "memory: 2 of 4  channels_last, 4×3×5×5" in capsys.readouterr().err


def test_all_parts_are_the_default_and_threads_are_set(monkeypatch, capsys):
    monkeypatch.setattr(
        speed, "PARTS", {name: part._replace(measure=lambda settings, case: []) for name, part in speed.PARTS.items()}
    )
    before = torch.get_num_threads()
    try:
        assert main(["speed", "--quick", "--device", "cpu", "--threads", "1"]) == 0
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    printed = capsys.readouterr()
    assert "1 threads" in printed.out
    for part in ("layer", "step", "attack", "scaling", "memory"):
        assert f"{part} 100 %" in printed.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["layr"], "Did you mean 'layer'"),
        (["--estimators", "medin"], "Did you mean 'median'"),
        (["--shapes", "3x4"], "a shape is BxCxHxW"),
        (["--shapes", "2x-3x4x4"], "a shape is BxCxHxW"),
        (["--shapes", "1x4x1x1"], "more than one value per channel"),
        (["--dtype", "float8"], "unknown dtype"),
        (["--model", "resnet-62"], "unknown model"),
        (["--layouts", "nhwc"], "Did you mean 'nchw'"),
        (["--rounds", "0"], "at least 1"),
        (["--batch", "1"], "no benign image"),
        (["--json", "{}"], "is a folder"),
        (["--json", "{}/no/such/x.json"], "cannot write"),
        (["--device", "cuda:99"], "cannot be used"),
        (["step", "--estimators", "mean"], "nothing to compare"),
        (["--estimators", "mean"], "nothing to compare"),
    ],
)
def test_wrong_input_is_one_line_and_exit_2(arguments, message, tmp_path, refusal):
    assert message in refusal(["speed", *(argument.format(tmp_path) for argument in arguments)])


@pytest.mark.slow
def test_torch_and_numpy_are_enough():
    done = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "4×3×5×5" in done.stdout


@pytest.mark.slow
def test_a_model_is_timed_alone_and_needs_a_name(capsys):
    tiny = ["--device", "cpu", "--batch", "6", "--pixels", "8", "--no-reference", "--rounds", "1"]
    assert main(["speed", "--model", "resnet-small", *tiny]) == 0
    printed = capsys.readouterr().out
    assert "model: resnet-small, 6 images of 8 pixels" in printed
    assert "layer:" not in printed
    assert main(["speed", "model", *tiny]) == 2
    assert "--model" in capsys.readouterr().err
    assert main(["speed", "--model", "resnet27", *tiny]) == 2
    assert "resnet26" in capsys.readouterr().err
