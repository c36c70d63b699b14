"""The attacker who knows the monitor."""

import pytest
import torch

import medbn
from medbn.attacks import DIA, Targeted, Unnoticed

from ..methods.table import make

MALICIOUS = slice(7, 10)
OPTIONS = {"steps": 15, "step_size": 0.02, "start": "random"}


def signals(model, images):
    tta = make(model, "tebn")
    monitor = medbn.Monitor(tta)
    tta(images)
    return monitor.latest.signals


def test_it_lowers_the_pressure_that_the_monitor_sees(model, stream):
    images, labels = stream[0]
    tta = make(model, "tebn")
    pressure = {}
    for name, attack in {"dia": DIA(**OPTIONS), "unnoticed": Unnoticed(stealth=100.0, **OPTIONS)}.items():
        seen = signals(model, attack(tta, images, labels, MALICIOUS))
        pressure[name] = sum(value for key, value in seen.items() if key.startswith("pressure/"))
    assert pressure["unnoticed"] < 0.9 * pressure["dia"]


def test_what_it_subtracts_is_what_the_monitor_measures(model, stream):
    images, labels = stream[0]
    tta = make(model, "tebn")
    values = {}
    for stealth in (0.0, 2.0):
        keep = lambda step, images, value, stealth=stealth: values.setdefault(stealth, value.item())  # noqa: E731
        Unnoticed(stealth=stealth, callback=keep, **{**OPTIONS, "steps": 1})(tta, images, labels, MALICIOUS)
    start = DIA(**{**OPTIONS, "steps": 0})(tta, images, labels, MALICIOUS)
    seen = signals(model, start)
    assert seen["outliers"] == 0  # so pressure is all that is subtracted
    pressure = sum(value for key, value in seen.items() if key.startswith("pressure/"))
    assert values[0.0] - values[2.0] == pytest.approx(2.0 * pressure, rel=1e-3)
    plain, aware = (
        kind(**OPTIONS)(tta, images, labels, MALICIOUS) for kind in (DIA, lambda **o: Unnoticed(stealth=0.0, **o))
    )
    assert torch.allclose(plain, aware, atol=1e-6)


def test_a_negative_weight_is_refused():
    with pytest.raises(ValueError, match="stealth"):
        Unnoticed(Targeted(), stealth=-1.0)
