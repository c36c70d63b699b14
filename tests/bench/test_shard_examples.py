"""The example scripts for SLURM arrays and CI matrices: their commands run all shards, and merge them."""

from __future__ import annotations

import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from medbn import bench
from medbn.cli import main

ROOT = Path(__file__).parents[2]
RECIPE = "no-attack --smoke --batches 1 --methods tebn tent --quiet"


def run_commands(commands: list[str]) -> None:
    """Run ``medbn`` commands in this process."""
    for command in commands:
        name, *arguments = shlex.split(command)
        assert name == "medbn"
        arguments = [path for word in arguments for path in (sorted(glob.glob(word)) if "*" in word else [word])]
        assert main(arguments) == 0


def number_of_streams(store: str) -> int:
    with bench.Store(store, create=False) as opened:
        return len(opened.cells())


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def all_streams(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "whole.db"
    main(["run", *RECIPE.split(), "--store", str(path)])
    return number_of_streams(str(path))


@pytest.mark.slow
def test_the_matrix_runs_all_shards_and_merges_them(all_streams, capsys):
    text = (ROOT / "examples" / "ci_matrix.yml").read_text(encoding="utf-8")
    (numbers,) = re.findall(r"shard: \[(.+)\]", text)
    (run, *then) = re.findall(r"run: (medbn .+)", text)
    for number in numbers.split(", "):
        run_commands([run.replace("demo", RECIPE).replace("${{ matrix.shard }}", number)])
    run_commands(then)
    assert "missing" not in capsys.readouterr().out
    assert number_of_streams("medbn.db") == all_streams
    for produced in ("medbn.db", "medbn.html"):
        assert Path(produced).exists()
        assert produced in text


def test_the_matrix_uses_the_actions_of_the_workflows():
    text = (ROOT / "examples" / "ci_matrix.yml").read_text(encoding="utf-8")
    workflows = "".join(path.read_text(encoding="utf-8") for path in (ROOT / ".github" / "workflows").glob("*.yml"))
    assert set(re.findall(r"uses: (.+)", text)) <= set(re.findall(r"uses: (.+)", workflows))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32" or not shutil.which("bash"), reason="a script for bash")
def test_the_slurm_script_runs_its_shard(all_streams, tmp_path, monkeypatch):
    script = ROOT / "examples" / "slurm_array.sh"
    (shards,) = re.findall(r"^#SBATCH --array=1-(\d+)$", script.read_text(encoding="utf-8"), flags=re.MULTILINE)
    fake = tmp_path / "bin" / "medbn"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    path = f"{fake.parent}{os.pathsep}{os.environ['PATH']}"

    def commands(number: int, **more: str) -> list[str]:
        given = {"PATH": path, "SLURM_ARRAY_TASK_ID": str(number), "SLURM_CPUS_PER_TASK": "1", **more}
        return subprocess.run(
            [script, *RECIPE.split()], env=given, capture_output=True, text=True, check=True
        ).stdout.split()

    assert f"{int(shards)}/{shards}" in commands(int(shards))
    for number in (1, 2):
        run_commands([shlex.join(["medbn", *commands(number, SHARDS="2")])])
    run_commands(["medbn merge medbn-*-of-2.db"])
    assert number_of_streams("medbn.db") == all_streams
