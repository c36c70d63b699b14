"""Shell completion, through the environment variables by which argcomplete's shell code asks for it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from medbn import bench, data, estimators, methods, models

pytest.importorskip("argcomplete")


def complete(line, output):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(output),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    done = subprocess.run([sys.executable, "-m", "medbn"], env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return [name.strip() for name in output.read_text().split("\n") if not name.startswith("-")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("medbn run ", bench.recipes.available()),
        ("medbn run demo --methods ", methods.available()),
        ("medbn run demo --estimators m", [name for name in estimators.available() if name.startswith("m")]),
        ("medbn data fetch ", data.available()),
        ("medbn train ", models.available()),
    ],
)
def test_a_shell_completes_names_of_the_registries(line, expected, tmp_path):
    assert sorted(complete(line, tmp_path / "completions")) == sorted(expected)
