"""The methods by name, with their options."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeVar

from .._errors import unknown_name
from .._registry import Registry
from ._options import Options, explain, parameters_of
from .base import Adapter

PRESETS = ("cifar10", "cifar100", "imagenet")
"""Benchmarks for which methods have published options."""

Method = TypeVar("Method", bound=type[Adapter])
_registry: Registry[type[Adapter]] = Registry("method")


def register(name: str, *, replace: bool = False) -> Callable[[Method], Method]:
    """Return a class decorator that makes a subclass of Adapter available as ``method=name``.

    Args:
        name: the method's name, in lower case.
        replace: replace the method of that name, if there is one.
    """
    _registry.check_name(name)
    if name != name.lower():
        raise ValueError(f"the name of a method is in lower case, such as {name.lower()!r}; got {name!r}.")

    def add(method: Method) -> Method:
        if not (inspect.isclass(method) and issubclass(method, Adapter)):
            raise TypeError(f"a method is a subclass of medbn.methods.Adapter, got {method!r}.")
        _registry.register(name, method, replace=replace)
        return method

    return add


def unregister(name: str) -> None:
    """Remove a method's name."""
    _registry.unregister(name.lower())


def available() -> list[str]:
    """Return the names that ``method=`` accepts.

    >>> available()[-4:]
    ['sotta', 'source', 'tebn', 'tent']
    """
    return sorted(_registry)


def get(method: str) -> type[Adapter]:
    """Return the class of that name; case does not matter."""
    return _registry.get(method.lower() if isinstance(method, str) else method)


def options(method: str, preset: str = "cifar10") -> Options:
    """Return a method's options and their values under a preset; printed, they come with their meanings.

    >>> list(options("sema"))[:6], options("sema")["momentum"]
    (['momentum', 'counted', 'logits', 'predict', 'seed', 'graph'], 0.2)
    >>> options("sema").about["momentum"]
    'the weight of the new batch; 0.2 in the MedBN paper, which writes α = 0.8 for the rest.'
    """
    if preset not in PRESETS:
        raise unknown_name("preset", preset, PRESETS)
    kind = get(method)
    defaults = {name: parameter.default for name, parameter in parameters_of(kind).items()}
    return Options({**defaults, **kind.presets.get(preset, {})}, explain(kind))
