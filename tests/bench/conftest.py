from __future__ import annotations

from dataclasses import replace

import pytest

from medbn.bench import DIGITS, Attack, Recipe


@pytest.fixture
def tiny() -> Recipe:
    """Four streams of three small batches: two methods with and without state, two estimators, one attack."""
    return Recipe(
        name="tiny",
        about="for tests",
        settings=(replace(DIGITS, batch_size=30, malicious=6),),
        methods=("tebn", "tent"),
        estimators=("mean", "image_median"),
        attacks=(Attack("indiscriminate", steps=2, step_size=0.1),),
        corruptions=("contrast",),
        batches=3,
    )
