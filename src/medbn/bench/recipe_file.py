"""Read recipes from TOML files, for one's own model and data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from .._errors import unknown_name
from .._files import read_toml
from . import user_modules
from .cell import Attack, Setting
from .recipe import Recipe
from .requirements import is_user_model


def read(path: str | Path, imports: Iterable[str] = ()) -> Recipe:
    """Return the recipe of a TOML file.

    The keys are the fields of Recipe, with ``[[settings]]`` and ``[[attacks]]`` as tables. The fields of a setting may
    also be at the top of the file: all settings then have them.

    A recipe file runs code where a model is ``MODULE:FUNCTION``. The module must be a Python file beside the recipe
    file, or a module of ``imports`` or below one.

    Args:
        path: the file.
        imports: modules of installed packages, which are imported.
    """
    path = Path(path)
    user_modules.import_modules(imports)
    try:
        values = read_toml(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"no recipe file {path}.") from None
    try:
        recipe = _build_recipe(path.stem, values)
        for setting in recipe.settings:
            if is_user_model(setting.model):
                user_modules.allow(setting.model, path.parent)
        return recipe
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path}: {error}") from None


def _build_recipe(name: str, values: dict[str, Any]) -> Recipe:
    setting_fields, recipe_fields = {f.name for f in fields(Setting)}, {f.name for f in fields(Recipe)}
    shared = {key: values.pop(key) for key in list(values) if key in setting_fields}
    for key in values:
        if key not in recipe_fields:
            raise unknown_name("field", key, recipe_fields | setting_fields)
    settings = [
        _build(Setting, {**shared, **table}, "settings") for table in _tables(values.pop("settings", [{}]), "settings")
    ]
    attacks = [_build(Attack, table, "attacks") for table in _tables(values.pop("attacks", []), "attacks")]
    for key, value in values.items():
        if isinstance(value, list):
            values[key] = tuple(value)
        elif key in ("methods", "estimators", "corruptions", "seeds", "published"):
            raise ValueError(f"{key} must be a list, got {value!r}.")
    defaults = {"name": name, "about": "", "methods": ("tebn",)}
    return Recipe(**{**defaults, **values, "settings": tuple(settings), "attacks": tuple(attacks)})


def _tables(value: Any, name: str) -> list[dict[str, Any]]:
    tables = [value] if isinstance(value, dict) else value
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ValueError(f"{name} must be tables, as in [[{name}]], got {value!r}.")
    return tables


def _build(kind: type[Any], values: dict[str, Any], where: str) -> Any:
    names = {f.name for f in fields(kind)}
    for key in values:
        if key not in names:
            raise unknown_name(f"field of {where}", key, names)
    missing = [name for name in ("data", "model") if kind is Setting and name not in values]
    if missing:
        raise ValueError(f"{' and '.join(missing)} must be given.")
    return kind(**values)
