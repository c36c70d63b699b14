"""The documented example of a method that a user writes outside of the package."""

import re
import runpy
from pathlib import Path

import pytest

import medbn
from medbn.methods import Adapter, _registry, register

from .table import make

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    monkeypatch.setattr(_registry._registry, "_values", dict(_registry._registry._values))


@pytest.mark.slow
def test_the_example_adapts_is_attacked_and_appears_in_a_report(capsys):
    example = runpy.run_path(str(ROOT / "examples" / "own_method.py"))
    example["main"]()
    printed = capsys.readouterr().out
    clean, poisoned = (float(number) for number in re.findall(r"^error.*: ([\d.]+) %", printed, flags=re.MULTILINE))
    assert clean < 30 < poisoned
    assert "| pseudo-label | MedBN |" in printed
    assert "pseudo_label" in medbn.methods.available()
    assert medbn.methods.options("pseudo_label")["confidence"] == 0.9


def test_the_document_shows_the_example():
    shown = re.findall(r"```python\n(.*?)```", (ROOT / "docs/extending.md").read_text("utf-8"), flags=re.DOTALL)
    method = next(block[block.index("@register") :] for block in shown if "pseudo_label" in block)
    assert method in (ROOT / "examples/own_method.py").read_text("utf-8")


def test_registered_methods_are_found_by_name(model, batches):
    @register("mine")
    class Mine(Adapter):
        """A method with nothing of its own."""

    assert medbn.methods.get("Mine") is Mine
    assert Mine.label == "Mine"
    assert make(model, "tebn")(batches[0]).equal(medbn.adapt(model, "mine", "median")(batches[0]))
    with pytest.raises(ValueError, match="mine"):
        register("mine")(Mine)
    medbn.methods.unregister("mine")
    assert "mine" not in medbn.methods.available()
    with pytest.raises(ValueError, match="lower case"):
        register("Mine")
    with pytest.raises(TypeError, match="subclass"):
        register("mine")(object)


def test_what_reports_call_the_methods():
    labels = {name: medbn.methods.get(name).label for name in medbn.methods.available()}
    assert labels == {
        "alpha_bn": "α-BN",
        "cotta": "CoTTA",
        "deyo": "DeYO",
        "eata": "EATA",
        "eta": "ETA",
        "lame": "LAME",
        "mdia": "mDIA",
        "note": "NOTE (BatchNorm source)",
        "past": "Past",
        "roid": "ROID",
        "rotta": "RoTTA",
        "sar": "SAR",
        "sema": "sEMA",
        "sotta": "SoTTA",
        "source": "Source",
        "tebn": "TeBN",
        "tent": "TENT",
    }
