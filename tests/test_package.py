"""What a user meets before writing any code: the import, the documented examples."""

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import medbn

from .registries import registries

# All but the library of the C kernels, which lies there and is no module.
MODULES = [m.name for m in pkgutil.walk_packages(medbn.__path__, "medbn.") if not m.name.endswith("._kernels")]
WITH_EXAMPLES = [m for m in MODULES if ">>>" in Path(find_spec(m).origin).read_text(encoding="utf-8")]
ROOT = Path(__file__).parent.parent


def run_python(*arguments):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_importing_medbn_loads_torch_and_numpy_alone():
    script = """
import sys, torch, numpy
before = set(sys.modules)
import medbn
from medbn._registry import Registry
added = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(added - {"medbn", "torch", "numpy"} - set(sys.stdlib_module_names)))
"""
    done = run_python("-c", script)
    assert done.stdout.strip() == "[]", done.stderr


def test_everything_public_is_there_and_documented():
    for name in medbn.__all__:
        assert getattr(medbn, name).__doc__, name
    assert re.fullmatch(r"\d+\.\d+\.\d+", medbn.__version__)


def test_every_module_can_be_imported():
    for module in MODULES:
        assert importlib.import_module(module).__name__ == module


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_documented_examples_hold(module):
    results = doctest.testmod(importlib.import_module(module))
    assert results.attempted > 0
    assert results.failed == 0


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "docs/quickstart.md",
        "docs/guide.md",
        "docs/data.md",
        "docs/bench.md",
        "docs/deploying.md",
        "docs/extending.md",
        "docs/figures.md",
    ],
)
@pytest.mark.slow
def test_code_in_documents_runs(document, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for registry in registries():
        monkeypatch.setattr(registry, "_values", dict(registry._values))  # what the document registers is removed again
    text = (ROOT / document).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert blocks
    namespace = {}
    for block in blocks:  # in order, each with what the ones before it defined
        exec(compile(block, document, "exec"), namespace)
