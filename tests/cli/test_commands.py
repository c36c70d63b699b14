"""The command line as a newcomer uses it: the bench, its report, and wrong input."""

from __future__ import annotations

import json
import os
import pkgutil
import re
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

import medbn
import medbn.models
from medbn import bench
from medbn.cli import main

RUN = ["run", "demo", "--smoke", "--methods", "tebn", "--estimators", "mean", "median"]


def medbn_process(*arguments: str, **options) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "medbn", *arguments]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


@pytest.mark.slow
def test_a_run_and_its_reports(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*RUN, "--store", "x.db"]) == 0
    printed = capsys.readouterr()
    assert "BatchNorm" in printed.out
    assert "MedBN" in printed.out
    assert "medbn report x.db" in printed.out
    assert "100 %  3 of 3 streams" in printed.err  # plain lines where there is no terminal
    for kind, ending, mark in [
        ("html", "html", "<!DOCTYPE html>"),
        ("markdown", "md", "# medbn: demo"),
        ("latex", "tex", "\\begin{tab"),
        ("csv", "csv", "BatchNorm"),
        ("json", "json", '"sections"'),
    ]:
        assert main(["report", "x.db", "--format", kind]) == 0
        assert capsys.readouterr().out.strip() == f"x.{ending}"
        assert mark in (tmp_path / f"x.{ending}").read_text()
    assert main(["report", "x.db", "--format", "json", "--out", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "medbn: demo (smoke)"
    assert sorted(file.suffix for file in tmp_path.iterdir()) == [".csv", ".db", ".html", ".json", ".md", ".tex"]


def test_quiet_prints_nothing_when_everything_is_done(tmp_path, capsys):
    assert main([*RUN, "--store", str(tmp_path / "x.db"), "--quiet"]) == 0
    printed = capsys.readouterr()
    assert printed.out == printed.err == ""


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_stops_cleanly_and_says_how_to_continue(jobs, tmp_path):
    arguments = ["run", "worst-case", "--smoke", "--store", str(tmp_path / "x.db"), "--jobs", jobs]
    child = medbn_process(
        *arguments,
        start_new_session=True,
        # Tests that run in the background may ignore Ctrl-C, and the child would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert "worst-case" in child.stderr.readline()  # the run has begun
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does
    _, errors = child.communicate()
    assert child.returncode == 130, errors
    assert f"To continue: medbn {' '.join(arguments)}" in errors
    assert re.search(r"stopped: \d+ of \d+ streams", errors)
    assert "Traceback" not in errors


@pytest.mark.slow
def test_recipes_lists_everything(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("medbn.data.cache_folder", lambda: tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "listed_module.py").write_text(
        "from medbn import bench\n"
        "@bench.recipes.register('from-a-module')\n"
        "def recipe():\n    return bench.Recipe(settings=(bench.recipes.DIGITS,))\n"
    )
    try:
        assert main(["recipes", "--root", str(tmp_path), "--device", "cpu", "--import", "listed_module"]) == 0
    finally:
        bench.recipes.unregister("from-a-module")
    printed = capsys.readouterr().out
    for name in [*medbn.bench.recipes.available(), "from-a-module"]:
        assert f"\n{name} " in f"\n{printed}"
    assert main(["recipes", "knowledge", "--root", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "medbn data generate cifar10-c" in printed
    assert "semi-white-box" in printed
    assert main(["recipes", "demo"]) == 0
    assert "ready: medbn run demo" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "demos"], "Did you mean 'demo'"),
        (["run", "targeted-instant", "--root", "{}"], "medbn data generate cifar10-c"),
        (["run", "demo", "--store", "{}/no/such/folder/x.db"], "cannot write"),
        (["run", "demo", "--store", "{}"], "is a folder"),
        (["run", "{}/half.toml"], "not valid TOML"),
        (["run", "{}/none.toml"], "no recipe file"),
        (["run", "demo", "--batches", "0"], "at least 1"),
        (["run", "demo", "--methods", "tint"], "Did you mean 'tent'"),
        (["run", "demo", "--seed", "-1"], "at least 0"),
        (["run", "demo", "--minutes", "0"], "number above 0"),
        (["run", "demo", "--weights", "{}/no.pt", "--store", "{}/x.db"], "/no.pt, but there is no such file"),
        (["train", "resnet-small", "--data", "digits", "--weight-decay", "-1"], "number of at least 0"),
        (["train", "resnet-small", "--data", "digits", "--weight-decay", "nan"], "number of at least 0"),
        (["train", "resnet-small", "--data", "digits", "--seed", "-1"], "at least 0"),
        (["run", "demo", "--device", "cuda:99"], "cannot be used"),
        (["report", "{}/none.db"], "no store"),
        (["report", "{}/half.toml"], "not a store"),
        (["report", "{}/half.toml", "--format", "word"], "Available: csv, html"),
        (["recipes", "demos"], "Did you mean 'demo'"),
        (["recipes", "--import", "no_module"], "no_module"),
        (["demo", "--sead=3"], "--sead"),
        (["demo", "attacks"], "argument DEMO"),
        (["demo", "changes", "--full"], "leave --full"),
        (["dance"], "invalid choice"),
        ([], "required: COMMAND"),
    ],
)
def test_wrong_input_is_one_line_and_exit_2(arguments, message, tmp_path, refusal):
    (tmp_path / "half.toml").write_text('data = "dig')
    assert message in refusal([argument.format(tmp_path) for argument in arguments])


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("{}/none/x.html", "the folder {}/none does not exist"),
        ("{}", "{} is a folder"),
        (os.devnull, "not a regular file"),
    ],
)
def test_a_report_is_written_to_regular_files_only(out, message, tmp_path, capsys):
    bench.Store(tmp_path / "x.db").close()
    assert main(["report", str(tmp_path / "x.db"), "--out", out.format(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert message.format(tmp_path) in printed.err
    assert printed.err.count("\n") == 1
    assert not list(tmp_path.parent.glob(".*.partial"))


def test_minutes_may_be_a_fraction(tmp_path, capsys):
    assert main([*RUN, "--store", str(tmp_path / "x.db"), "--minutes", "0.00001"]) == 3
    assert "not finished: 0 of 3 streams are done, 1 batch in this run." in capsys.readouterr().err


def test_quiet_says_what_is_left(tmp_path, capsys):
    assert main([*RUN, "--store", str(tmp_path / "x.db"), "--minutes", "0.00001", "--quiet"]) == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "not finished: 0 of 3 streams" in printed.err
    assert printed.err.count("\n") == 1


def test_a_run_of_which_another_process_does_a_part_is_not_finished(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("medbn.bench.Store.claim", lambda *arguments: False)
    assert main([*RUN, "--store", str(tmp_path / "x.db"), "--quiet"]) == 3
    assert "another process is running 3 of the streams" in capsys.readouterr().err


def test_a_recipe_that_takes_months_says_how_to_shorten_it_and_what_it_takes_on_a_gpu(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("medbn.bench.time_estimate.calibrate", lambda device: 1e11)
    for name, narrowed in (("targeted-instant", True), ("demo", False)):
        assert main(["recipes", name, "--root", str(tmp_path), "--device", "cpu"]) == 0
        printed = capsys.readouterr().out
        assert bool(re.search(r"too long here, about [\d,]+ GPU-hours .*shorten it with --data", printed)) is narrowed
        assert "years" not in printed


def test_an_unexpected_error_shows_its_type_and_how_to_get_a_traceback(capsys, monkeypatch):
    monkeypatch.setattr("medbn.bench.recipes.get", lambda name, imports: {}["nothing"])
    assert main(["run", "demo"]) == 2
    assert "KeyError: 'nothing' (MEDBN_DEBUG=1 shows" in capsys.readouterr().err
    monkeypatch.setenv("MEDBN_DEBUG", "1")
    with pytest.raises(KeyError):
        main(["run", "demo"])


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"medbn {medbn.__version__}\n"


def test_help_lists_every_command_on_one_line(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    for file in pkgutil.iter_modules(medbn.cli.__path__):
        if not file.name.startswith("_"):
            assert sum(line.startswith(f"  {file.name} ") and len(line) < 100 for line in lines) == 1, file.name


def test_models_are_listed_with_their_size(capsys):
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1 : 1 + len(medbn.models.available())]] == medbn.models.available()
    assert next(line for line in lines if line.startswith("resnet-small")).split() == ["resnet-small", "0.08", "M"]


@pytest.mark.slow
def test_a_reader_that_ends_early_is_no_error(monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # what is left in the buffer is written when Python ends
    child = medbn_process("data", "list")
    child.stdout.close()
    assert child.wait(60) == 0
    assert child.stderr.read() == ""
    child.stderr.close()


@pytest.mark.slow
def test_the_demo(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("medbn.bench.recipes.DEMO_STEPS", 12)  # enough to see the direction; the real one has more
    monkeypatch.setattr("medbn.bench.recipes.DEMO_CORRUPTIONS", ("contrast",))
    assert main(["demo"]) == 0
    printed = capsys.readouterr().out
    assert "report: medbn-demo.html" in printed
    rows = {
        tuple(line.split()[:2]): line.split()[2:] for line in printed.splitlines() if line.startswith(("TeBN", "TENT"))
    }
    assert len(rows) == 6
    for method in ("TeBN", "TENT"):
        batch_norm, image_median = (float(rows[method, name][1]) for name in ("BatchNorm", "image_median"))
        assert batch_norm > image_median + 5
    assert "<!DOCTYPE html>" in (tmp_path / "medbn-demo.html").read_text()


@pytest.mark.slow
def test_the_demo_of_segmentation(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("medbn.bench.recipes.SEGMENTATION_DEMO_STEPS", 5)
    monkeypatch.setattr("medbn.bench.recipes.SEGMENTATION_DEMO_BATCHES", 2)
    assert main(["demo", "segmentation"]) == 0
    printed = capsys.readouterr().out
    assert "report: medbn-demo-segmentation.html" in printed
    rows = [line.split()[1:4] for line in printed.splitlines() if line.startswith("TeBN")]
    assert [row[0] for row in rows] == 2 * ["BatchNorm", "MedBN", "image_median"]
    # The indiscriminate attack comes first; it lowers the mean IoU of BatchNorm.
    assert float(rows[0][1]) > float(rows[0][2]) + 5
    page = (tmp_path / "medbn-demo-segmentation.html").read_text()
    assert page.count("data:image/png") > 40


FUNCTIONS = """
from medbn import models

def both(classes, channels):
    return models.get("resnet-small", classes=classes, channels=channels)

def neither():
    return models.get("resnet-small", channels=1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("function", ["both", "neither"])
def test_a_function_has_one_signature_in_run_and_train(function, tmp_path, monkeypatch):
    (tmp_path / "own_nets.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    name = f"own_nets:{function}"
    try:
        assert main(["train", name, "--data", "digits", "--epochs", "1", "--out", str(tmp_path / "w.safetensors")]) == 0
        setting = replace(bench.DIGITS, model=name, weights=str(tmp_path / "w.safetensors"), batch_size=40, malicious=8)
        recipe = bench.Recipe(settings=(setting,), methods=("tebn",), corruptions=("contrast",), batches=1)
        assert bench.run(recipe, tmp_path / "x.db")
    finally:
        sys.modules.pop("own_nets", None)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("data", "list"), ("models",)])
def test_a_terminal_without_unicode_shows_the_rest(arguments, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    child = medbn_process(*arguments)
    printed, errors = child.communicate()
    assert child.returncode == 0, errors
    assert printed.isascii()
