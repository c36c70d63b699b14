"""A few random trials of every kind; ``make torture`` runs thousands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from ..tiers import slow

for module in ("PIL", "safetensors"):
    pytest.importorskip(module)

from . import adapters, files, runs  # noqa: E402, F401  register their kinds
from .trials import KINDS, Kind, run_kind  # noqa: E402

IN_PROCESSES = ("kills", "sharing")
ROOT = Path(__file__).parents[2]


FAST = [("arrays", 60), ("recipes", 60)]
SLOW = [
    ("archives", 40),
    ("images", 60),
    ("interrupts", 10),
    ("segmentation", 40),
    ("state-files", 25),
    ("states", 30),
    ("stores", 25),
    ("threads", 5),
    ("weights", 25),
]
INTERRUPTS_COVERAGE = "an exception within coverage's own code leaves its lock locked, and the next line waits for ever"


@pytest.mark.parametrize(("kind", "trials"), [*FAST, *slow(*SLOW)])
def test_a_few_trials(kind, trials):
    if kind == "interrupts" and "COVERAGE_RUN" in os.environ:
        pytest.skip(INTERRUPTS_COVERAGE)
    report = run_kind(kind, trials, seed=0)
    assert report.broken == []
    assert report.trials == trials
    if kind == "interrupts":  # on a busy machine, all may be stopped
        assert report.outcomes["stopped"]
    elif kind not in ("threads", "state-files"):
        assert len(report.outcomes) > 1  # trials that end all alike prove little


@pytest.mark.slow
def test_a_few_runs_are_killed_and_shared():
    """In a process of its own: it forks, and the process of a test may have threads."""
    command = [sys.executable, "-m", "tests.torture", *IN_PROCESSES, "--trials", "1"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 runs with the same bits" in done.stdout
    assert "1 stores with the same bits" in done.stdout


def test_broken_promises_and_other_exceptions_are_counted(monkeypatch):
    def run(rng, folder):
        if rng.random() < 0.5:
            raise KeyError("x")
        return Counter({"fine": 2})

    monkeypatch.setitem(KINDS, "odd", Kind("odd", 10, run, "odd"))
    report = run_kind("odd", 40, seed=1)
    assert report.trials == 40
    assert report.outcomes["BROKEN"] == len(report.broken) > 5
    assert report.outcomes["fine"] == 2 * (40 - len(report.broken))
    number = int(report.broken[0].split()[1].rstrip(":"))
    assert run_kind("odd", 1, seed=1, first=number).broken == report.broken[:1]  # a trial can be repeated alone


def test_the_page_names_every_kind_of_trial_and_tests_that_exist():
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    rows = {line.split("|")[1].strip().strip("`") for line in page.splitlines() if line.startswith("| `")}
    assert set(KINDS) <= rows
    named = set(re.findall(r"`(tests/[\w/.]+)`", page))
    assert len(named) > 10
    assert not [path for path in sorted(named) if not (ROOT / path).exists()]
