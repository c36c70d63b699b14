"""Recipes by name, open to users' own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from .._registry import Registry
from .recipe import Recipe
from .recipe_file import read
from .user_modules import import_modules

Function = Callable[[], Recipe]

_registry: Registry[Function] = Registry("recipe")


def available() -> list[str]:
    """Return the names of all recipes, in the order of the paper."""
    return _registry.available()


def get(name: str, *, imports: Iterable[str] = ()) -> Recipe:
    """Return a recipe by its name, or by the path of a TOML file.

    Args:
        name: the name or the path.
        imports: modules to import first: they may register what the recipe names, and a TOML file may use their
            functions.
    """
    import_modules(imports)
    return read(name) if name.endswith(".toml") else _registry.get(name)()


def register(name: str, *, replace: bool = False) -> Callable[[Function], Function]:
    """Register a function that returns a recipe; ``medbn run`` then takes the name.

    The recipe gets this name and, unless it says something about itself, the function's docstring.

    >>> from medbn.bench import DIGITS
    >>> @register("my-digits")
    ... def my_digits() -> Recipe:
    ...     '''TENT on digits, without attack.'''
    ...     return Recipe(settings=(DIGITS,), methods=("tent",))
    >>> get("my-digits").about
    'TENT on digits, without attack.'
    >>> unregister("my-digits")
    """

    def add(function: Function) -> Function:
        def make_recipe() -> Recipe:
            recipe = function()
            return dataclasses.replace(recipe, name=name, about=recipe.about or (function.__doc__ or "").strip())

        _registry.register(name, make_recipe, replace=replace)
        return make_recipe

    return add


def unregister(name: str) -> None:
    """Remove a recipe."""
    _registry.unregister(name)
