"""A small experiment on digits that the tests of figures share."""

from __future__ import annotations

from dataclasses import replace

import pytest

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
