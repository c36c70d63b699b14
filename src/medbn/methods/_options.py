"""The options of a method: the keyword arguments of its constructor and of those that it passes options on to."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from .._check_types import wrong_type


def parameters_of(method: type) -> dict[str, inspect.Parameter]:
    """Return the options of a class by name, its own first."""
    found: dict[str, inspect.Parameter] = {}
    for base in method.__mro__:
        if "__init__" not in vars(base):
            continue
        parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
        for parameter in parameters:
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                found.setdefault(parameter.name, parameter)
        if all(parameter.kind is not inspect.Parameter.VAR_KEYWORD for parameter in parameters):
            break  # it passes no options on to its base class
    return found


def check_options(method: type, given: Mapping[str, object]) -> None:
    """Raise a TypeError unless the options have their annotated types."""
    parameters = parameters_of(method)
    for name, value in given.items():
        if name in parameters:
            problem = wrong_type(value, _annotation(parameters[name]))
            if problem:
                raise TypeError(f"{name} {problem}")


def _annotation(parameter: inspect.Parameter) -> str:
    """Return the annotated type; without one, "float" or "bool" if the default says so."""
    annotation, default = parameter.annotation, parameter.default
    if annotation is parameter.empty:
        return "bool" if isinstance(default, bool) else "float" if isinstance(default, int | float) else ""
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)
