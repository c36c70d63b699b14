"""The options of a method: the keyword arguments of its constructor and of those that it passes options on to."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from .._check_types import wrong_type


class Options(dict[str, Any]):
    """The options of a method and their values; printed, each with what it means and where its value comes from."""

    def __init__(self, values: Mapping[str, Any], about: Mapping[str, str]) -> None:
        super().__init__(values)
        self.about = dict(about)
        """What each option means, by name."""

    def __str__(self) -> str:
        """Return one paragraph for each option."""
        return "\n".join(
            textwrap.fill(f"{name} = {value!r}: {self.about.get(name, '')}".rstrip(": "), 100, subsequent_indent="    ")
            for name, value in self.items()
        )


def explain(method: type) -> Mapping[str, str]:
    """Return what each option means, from the sections "Args" of a class and of those that it derives from."""
    if method not in _meanings:
        _meanings[method] = _find_meanings(method)
    return _meanings[method]


def parameters_of(method: type) -> Mapping[str, inspect.Parameter]:
    """Return the options of a class by name, its own first."""
    if method not in _parameters:
        _parameters[method] = _find_parameters(method)
    return _parameters[method]


# Found once per class: they never change, and adapters are made often.
_meanings: WeakKeyDictionary[type, dict[str, str]] = WeakKeyDictionary()
_parameters: WeakKeyDictionary[type, dict[str, inspect.Parameter]] = WeakKeyDictionary()


def _find_meanings(method: type) -> dict[str, str]:
    about: dict[str, str] = {}
    for base in method.__mro__:
        section = re.split(r"^ *Args: *$", inspect.cleandoc(vars(base).get("__doc__") or ""), maxsplit=1, flags=re.M)
        entries = re.split(r"\n\S|\n\n", section[1], maxsplit=1)[0] if len(section) == 2 else ""
        for entry in re.split(r"^ {4}(?=\S)", entries, flags=re.M):
            names, colon, text = entry.partition(": ")
            if colon and not text.startswith("as for "):
                for name in names.split(", "):
                    about.setdefault(name, " ".join(text.split()))
    return {name: about[name] for name in parameters_of(method) if name in about}


def _find_parameters(method: type) -> dict[str, inspect.Parameter]:
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
