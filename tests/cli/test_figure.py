"""``medbn figure``: files, numbers, and errors of one line before anything is measured."""

from __future__ import annotations

import json
import re

import pytest

from medbn import analysis, cli

QUICK = ["--batch-size", "40", "--steps", "2", "--corruptions", "contrast", "--quiet"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_list_names_every_figure(capsys):
    assert cli.main(["figure", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == analysis.available()


@pytest.mark.slow
def test_numbers_alone_need_no_drawing(folder, capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    assert cli.main(["figure", "shift", *QUICK, "--json", "a.json", "--csv", "a.csv"]) == 0
    assert capsys.readouterr().out.split() == ["a.json", "a.csv"]
    values = json.loads((folder / "a.json").read_text(encoding="utf-8"))
    assert values["settings"]["batch_size"] == 40
    assert values["settings"]["malicious"] == 8
    assert len((folder / "a.csv").read_text(encoding="utf-8").splitlines()) == len(values["rows"]) + 1
    assert not list(folder.glob("*.svg"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "file", "start"),
    [
        ([], "shift.svg", b"<?xml"),
        (["--format", "pdf"], "shift.pdf", b"%PDF"),
        (["--out", "x.png"], "x.png", b"\x89PNG"),
    ],
)
def test_a_figure_is_written_in_each_format(folder, arguments, file, start):
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    assert cli.main(["figure", "shift", *QUICK, *arguments]) == 0
    assert (folder / file).read_bytes().startswith(start)


@pytest.mark.slow
def test_numbers_are_drawn_again_in_both_themes_without_measuring(folder, monkeypatch):
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    assert cli.main(["figure", "shift", *QUICK, "--json", "numbers/"]) == 0
    monkeypatch.setattr(analysis, "measure", None)
    arguments = ["figure", "shift", "--from", "numbers/shift.json", "--out", "pictures/", "--theme", "light", "dark"]
    assert cli.main(arguments) == 0
    assert sorted(path.name for path in (folder / "pictures").iterdir()) == ["shift-dark.svg", "shift.svg"]
    narrow = ["--from", "numbers/shift.json", "--out", "narrow.svg", "--width", "column"]
    assert cli.main(["figure", "shift", *narrow]) == 0
    width = re.search(rb'width="([\d.]+)pt"', (folder / "narrow.svg").read_bytes())
    assert float(width[1]) == pytest.approx(72 * 3.35)


@pytest.mark.parametrize(
    ("arguments", "steps", "sizes", "threads"),
    [
        (["shift"], 20, (20, 100), 1),
        (["filters"], 8, (20, 100), 1),
        (["filters", "--steps", "7", "--batch-size", "40", "--threads", "2"], 7, (8, 40), 2),
        (["filters", "--data", "cifar10-c"], 100, (40, 200), None),
        (["shift", "--data", "cifar10-c"], 100, (40, 200), None),
    ],
)
def test_defaults_are_small_on_digits_alone(monkeypatch, arguments, steps, sizes, threads):
    measured = []

    def measure(name, experiment):
        measured.append(experiment)
        return analysis.Numbers(name, {}, [])

    monkeypatch.setattr(analysis, "measure", measure)
    monkeypatch.setattr("medbn.cli.figure.check_data", lambda *_: None)
    assert cli.main(["figure", *arguments, "--device", "cpu", "--json", "a.json"]) == 0
    (experiment,) = measured
    settings = experiment.settings
    assert settings.attack.steps == steps
    assert settings.attack.step_size == pytest.approx(max(100 / steps, 1) / 255)
    assert (settings.setting.malicious, settings.setting.batch_size) == sizes
    assert experiment.place.threads == threads


def test_progress_counts_the_attacks_of_a_figure(capsys):
    assert cli.main(["figure", "filters", *QUICK[:-1], "--json", "a.json"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].split()[:3] == ["filters", "100", "%"]
    assert lines[-1].endswith("2 of 2")


def test_two_formats_are_refused(refusal):
    assert "--format svg" in refusal(["figure", "shift", "--out", "a.png", "--format", "svg"])


def test_numbers_of_another_figure_are_refused(folder, refusal):
    (folder / "a.json").write_text('{"figure": "tsne", "settings": {}, "rows": []}', encoding="utf-8")
    assert "'tsne'" in refusal(["figure", "shift", "--from", "a.json"])
    (folder / "b.json").write_text("[1, 2", encoding="utf-8")
    assert "b.json" in refusal(["figure", "shift", "--from", "b.json"])
    assert "c.json" in refusal(["figure", "shift", "--from", "c.json"])


@pytest.mark.slow
def test_all_figures_are_on_one_sheet(folder, monkeypatch):
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    monkeypatch.setattr(analysis, "available", lambda: ["illustration", "shift"])
    assert cli.main(["figure", "all", *QUICK, "--out", "sheet.svg"]) == 0
    assert [path.name for path in folder.glob("*.svg")] == ["sheet.svg"]
    assert cli.main(["figure", "all", *QUICK, "--out", "folder/", "--csv", "folder/"]) == 0
    names = ["all.svg", "illustration.csv", "illustration.svg", "shift.csv", "shift.svg"]
    assert sorted(path.name for path in (folder / "folder").iterdir()) == names


@pytest.mark.slow
def test_the_same_numbers_give_the_same_file(folder):
    """SVG files have no date and no random names."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    for name in ("a.svg", "b.svg"):
        assert cli.main(["figure", "shift", *QUICK, "--out", name]) == 0
    assert (folder / "a.svg").read_bytes() == (folder / "b.svg").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["shfit"], ["shfit", "'shift'"]),
        (["shift", "--theme", "blue"], ["blue", "dark", "light"]),
        (["shift", "--width", "wide"], ["wide", "column", "page"]),
        (["shift", "--format", "gif"], ["gif", "svg"]),
        (["shift", "--out", "nowhere/x.svg"], ["nowhere"]),
        (["shift", "--data", "photos/"], ["--model"]),
        (["shift", "--data", "cifar10-c", "--root", "empty"], ["cifar10-c", "medbn data"]),
        (["shift", "--estimators", "middle"], ["middle", "median"]),
        (["shift", "--epsilons", "8/0"], ["8/0"]),
        (["filters", "--objectives", "all"], ["all", "indiscriminate", "targeted"]),
        (["filters", "--start", "middle"], ["middle", "grey", "offset"]),
        (["shift", "--layers", "some"], ["some", "stages"]),
        (["all", "--json", "x.json"], ["--json"]),
    ],
)
def test_wrong_arguments_are_one_line(refusal, arguments, words):
    printed = refusal(["figure", *arguments, "--quiet"])
    assert all(word in printed for word in words)
