"""Recipes from TOML files, for one's own model and data."""

from __future__ import annotations

import importlib
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from .._errors import unknown_name
from .cell import Attack, Setting
from .recipe import Recipe


def read(path: str | Path) -> Recipe:
    """A recipe from a TOML file: the fields of Recipe, with ``[[settings]]`` and ``[[attacks]]`` as tables.

    A file with one setting may have its fields at the top instead.
    """
    tomllib = _tomllib()
    path = Path(path)
    try:
        with path.open("rb") as file:
            given = tomllib.load(file)
    except FileNotFoundError:
        raise FileNotFoundError(f"no recipe file {path}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from None
    try:
        return _parsed(path.stem, given)
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path}: {error}") from None


def _parsed(name: str, given: dict[str, Any]) -> Recipe:
    of_setting, of_recipe = {f.name for f in fields(Setting)}, {f.name for f in fields(Recipe)}
    shared = {key: given.pop(key) for key in list(given) if key in of_setting}
    for key in given:
        if key not in of_recipe:
            raise unknown_name("field", key, of_recipe | of_setting)
    settings = [
        _made(Setting, {**shared, **one}, "settings") for one in _tables(given.pop("settings", [{}]), "settings")
    ]
    kinds = [_made(Attack, one, "attacks") for one in _tables(given.pop("attacks", []), "attacks")]
    for key, value in given.items():
        if isinstance(value, list):
            given[key] = tuple(value)
        elif key in ("methods", "estimators", "corruptions", "seeds", "published"):
            raise ValueError(f"{key} must be a list, got {value!r}.")
    defaults = {"name": name, "about": "", "methods": ("tebn",)}
    return Recipe(**{**defaults, **given, "settings": tuple(settings), "attacks": tuple(kinds)})


def _tables(value: Any, name: str) -> list[dict[str, Any]]:
    found = [value] if isinstance(value, dict) else value
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise ValueError(f"{name} must be tables, as in [[{name}]], got {value!r}.")
    return found


def _made(kind: type[Any], given: dict[str, Any], where: str) -> Any:
    known = {f.name for f in fields(kind)}
    for key in given:
        if key not in known:
            raise unknown_name(f"field of {where}", key, known)
    missing = [name for name in ("data", "model") if kind is Setting and name not in given]
    if missing:
        raise ValueError(f"{' and '.join(missing)} must be given.")
    return kind(**given)


def _tomllib() -> Any:
    try:
        return importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ImportError:
        raise ImportError("reading TOML needs tomli before Python 3.11: pip install 'medbn[bench]'") from None
