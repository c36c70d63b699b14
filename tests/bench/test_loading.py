"""Loading a cell: the order of its images, and the user's own code in its key."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace

import pytest

from medbn import attacks, bench, data, estimators, methods, models
from medbn.bench import loading

MODULE = """
import torch
from medbn import models

def build():
    return Signed(models.get("resnet-small", weights="shipped"))

class Signed(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return {sign} * self.model(x)
"""


def test_the_code_of_a_users_model_is_part_of_the_key(tmp_path, tiny, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    setting = replace(tiny.settings[0], model="my_nets:build", weights=None)
    (cell,) = replace(tiny, settings=(setting,), methods=("tebn",), estimators=("mean",), attacks=()).cells()
    keys = set()
    for sign in ("+1", "-1"):
        (tmp_path / "my_nets.py").write_text(MODULE.format(sign=sign))
        importlib.invalidate_caches()
        monkeypatch.delitem(sys.modules, "my_nets", raising=False)
        loading.load_model.cache_clear()
        keys.add(loading.load_cell(cell, bench.Place(), 1).key)
    assert len(keys) == 2


def test_what_the_package_registers_adds_no_code_to_a_key(tiny):
    """Otherwise every release would run every stored result again."""
    cell = next(tiny.cells())
    cells = [replace(cell, corruption=name) for name in data.corruptions.available()]
    cells += [replace(cell, method=name) for name in methods.available()]
    cells += [replace(cell, estimator=name) for name in estimators.available()]
    cells += [replace(cell, scenario=name) for name in attacks.scenarios.available()]
    cells += [replace(cell, attack=bench.Attack(name)) for name in attacks.objectives.available()]
    cells += [replace(cell, setting=replace(cell.setting, model=name)) for name in models.available()]
    assert {loading.user_code(one) for one in cells} == {""}


def test_a_seed_gives_every_corruption_an_order_of_its_own(tiny):
    setting = tiny.settings[0]
    orders = {
        (seed, corruption): loading.load_stream(setting.data, corruption, 1, setting.frost, seed, None).labels.tolist()
        for seed, corruption in ((0, "fog"), (0, "contrast"), (1, "fog"), (1, "contrast"), (2, "fog"))
    }
    assert orders[0, "fog"] == orders[0, "contrast"]
    assert len({tuple(order) for order in orders.values()}) == 4


def test_a_stream_shorter_than_one_batch_is_an_error(tmp_path, tiny):
    long = replace(tiny, settings=(replace(tiny.settings[0], batch_size=900, malicious=10),))
    with pytest.raises(ValueError, match="900"):
        bench.run(long, tmp_path / "x.db")
