"""A small experiment on digits that the tests of figures share."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils._pytree import tree_leaves

from medbn import analysis


@pytest.fixture(scope="session")
def settings():
    """Forty digits, eight of them malicious after two steps."""
    defaults = analysis.Settings()
    setting = replace(defaults.setting, batch_size=40, malicious=8)
    return replace(defaults, setting=setting, attack=analysis.attack_of(2), corruptions=("contrast",))


@pytest.fixture(scope="session")
def experiment(settings):
    """An experiment without a store."""
    return analysis.Experiment(settings)


def state_values(adapter):
    """All values of an adapter's state, exactly, as plain Python values."""
    leaves = tree_leaves(adapter.snapshot())
    return [leaf.tolist() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
