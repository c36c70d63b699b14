"""What a user meets before writing any code: the import, the demo, the documented examples."""

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import medbn
from medbn import demo

MODULES = [m.name for m in pkgutil.walk_packages(medbn.__path__, "medbn.")]
ROOT = Path(__file__).parent.parent


def run_python(*arguments):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


def test_importing_medbn_loads_torch_and_numpy_alone():
    script = """
import sys, torch, numpy
before = set(sys.modules)
import medbn
added = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(added - {"medbn", "torch", "numpy"} - set(sys.stdlib_module_names)))
"""
    done = run_python("-c", script)
    assert done.stdout.strip() == "[]", done.stderr


def test_everything_public_is_there_and_documented():
    for name in medbn.__all__:
        assert getattr(medbn, name).__doc__, name
    assert re.fullmatch(r"\d+\.\d+\.\d+", medbn.__version__)


@pytest.mark.parametrize("module", MODULES)
def test_documented_examples_hold(module):
    results = doctest.testmod(importlib.import_module(module))
    assert results.failed == 0


@pytest.mark.parametrize("document", ["README.md", "docs/data.md"])
def test_code_in_documents_runs(document, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(medbn.estimators, "_registry", dict(medbn.estimators._registry))  # what it registers ends here
    text = (ROOT / document).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert blocks
    namespace = {}
    for block in blocks:  # in order, each with what the ones before it defined
        exec(compile(block, document, "exec"), namespace)


@pytest.fixture(scope="module")
def table():
    """The demo's rows: (poison, name) → centre, variance, predictions changed."""
    done = run_python("-m", "medbn.demo")
    assert done.returncode == 0, done.stderr
    assert run_python("-m", "medbn.demo").stdout == done.stdout  # the seed decides everything
    rows, poison = {}, -1
    for line in done.stdout.splitlines():
        poison += "; the other" in line
        numbers = re.findall(r"[\d.e+-]+(?= [σ×%])", line)
        if len(numbers) == 4 and line.startswith("  "):
            rows[poison, line.split()[0]] = [float(n) for n in numbers[:3]]
    assert "MedBN is no protection against the second poison" in done.stdout
    return rows


def test_the_demo_shows_what_it_says(table):
    assert len(table) == 6
    moderate, huge = 0, 1
    for poison in (moderate, huge):  # MedBN's centre holds under both, and image_median in everything
        assert table[poison, "MedBN"][0] < table[poison, "BatchNorm"][0] / 2
        assert table[poison, "image_median"][0] < table[poison, "BatchNorm"][0] / 2
        assert table[poison, "image_median"][1] < 1.5
        assert table[poison, "image_median"][2] < table[poison, "BatchNorm"][2] / 2
    assert table[moderate, "MedBN"][2] < table[moderate, "BatchNorm"][2] / 2
    assert table[huge, "BatchNorm"][0] > 100
    assert table[huge, "MedBN"][1] > 1e6  # its variance does not hold, nor do the predictions
    assert table[huge, "MedBN"][2] > 50


def test_the_demo_refuses_what_it_does_not_know(capsys):
    with pytest.raises(SystemExit) as stop:
        demo.main(["--sead", "3"])
    assert stop.value.code == 2
    assert "--sead" in capsys.readouterr().err
