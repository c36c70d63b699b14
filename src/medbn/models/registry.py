"""Where architectures are known by name; a file of this folder adds one with ``@register("name")``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import nn

Factory = TypeVar("Factory", bound=Callable[..., nn.Module])

registry: dict[str, Callable[..., nn.Module]] = {}


def register(name: str) -> Callable[[Factory], Factory]:
    """Make ``models.get(name)`` call the decorated function with its options as keywords.

    Among its options should be ``classes``, ``channels``, ``mean`` and ``std``, each with a default.
    """
    if not isinstance(name, str) or not name or ":" in name:
        raise ValueError(
            f"a model's name is a string without ':', got {name!r}; 'package:name' is for those of others."
        )

    def enter(factory: Factory) -> Factory:
        if name in registry:
            raise ValueError(f"there is a model {name!r} already; choose another name.")
        registry[name] = factory
        return factory

    return enter
