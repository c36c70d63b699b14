"""All registries of the package, for tests that register something for a while."""

from __future__ import annotations

import sys
from typing import Any

from medbn._registry import Registry


def registries() -> list[Registry[Any]]:
    """Return the registries of all modules of the package that have been imported."""
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "medbn"]
    return list({id(value): value for m in modules for value in vars(m).values() if type(value) is Registry}.values())
