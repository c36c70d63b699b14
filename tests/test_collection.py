"""GPU machines have torch, numpy and pytest alone: `pytest -m gpu` must be able to collect its tests there."""

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# torch depends on triton where it supports CUDA.
AVAILABLE = {"torch", "numpy", "pytest", "triton"}

COLLECT = """
import sys
from importlib.machinery import PathFinder

HIDDEN = set({hidden!r})

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
import pytest
sys.exit(pytest.main(["--collect-only", "-q", "-m", "gpu", "-p", "no:cacheprovider"]))
"""


def requirements(package, collected=None):
    """The names of a package and of everything that it needs, without extras."""
    collected = set() if collected is None else collected
    if package not in collected:
        collected.add(package)
        try:
            lines = importlib.metadata.requires(package) or []
        except importlib.metadata.PackageNotFoundError:
            lines = []
        for line in lines:
            if "extra ==" not in line:
                requirements(re.match(r"[\w.-]+", line)[0].lower().replace("_", "-"), collected)
    return collected


@pytest.mark.slow
def test_gpu_tests_collect_without_the_development_tools():
    allowed = set().union(*(requirements(package) for package in AVAILABLE)) | {"medbn"}
    hidden = {
        module
        for module, packages in importlib.metadata.packages_distributions().items()
        if not {package.lower().replace("_", "-") for package in packages} & allowed
    }
    assert {"hypothesis", "PIL", "sklearn", "scipy", "rich", "selenium"} <= hidden
    done = subprocess.run(
        [sys.executable, "-c", COLLECT.format(hidden=sorted(hidden))],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "tests/kernels" in done.stdout
