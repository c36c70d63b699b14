"""Cases of parametrised tests that the fast tier leaves to the full run."""

from __future__ import annotations

from typing import Any

import pytest


def slow(*cases: Any) -> list[Any]:
    """Return cases for ``parametrize`` that are marked slow; a tuple has a value for each of several arguments."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow) for case in cases]
