"""What contexts set in layers for a while: overrides of their settings, and observers.

Contexts may overlap and end in any order, also in several threads: each removes only what it has set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ._layer_settings import overrides_lock
from .layers import Observer, RobustBatchNorm


def add_overrides(overrides: Mapping[RobustBatchNorm, dict[str, Any]]) -> None:
    """Override settings of layers until ``remove_overrides``, which may come in any order."""
    with overrides_lock:
        for layer, override in overrides.items():
            vars(layer).update(override, _overrides=(*layer._overrides, override))


def remove_overrides(overrides: Mapping[RobustBatchNorm, dict[str, Any]]) -> None:
    """Remove these overrides, where they are; the others and the layer's own settings remain."""
    with overrides_lock:
        for layer, override in overrides.items():
            vars(layer)["_overrides"] = tuple(other for other in layer._overrides if other is not override)
            layer._apply_overrides()


def add_observers(observers: Mapping[RobustBatchNorm, Observer]) -> None:
    """Call these observers in each forward pass, after those that are there."""
    with overrides_lock:
        for layer, observer in observers.items():
            layer._observers = (*layer._observers, observer)


def remove_observers(observers: Mapping[RobustBatchNorm, Observer]) -> None:
    """Remove these observers, where they are."""
    with overrides_lock:
        for layer, observer in observers.items():
            layer._observers = tuple(other for other in layer._observers if other is not observer)


def remove_other_contexts(contexts: Iterable[tuple[RobustBatchNorm, Any, Any]]) -> None:
    """Remove what contexts have set since ``list_contexts``, for those that an exception kept from doing so."""
    with overrides_lock:
        for layer, overrides, observers in contexts:
            layer._overrides = tuple(o for o in layer._overrides if any(o is old for old in overrides))
            layer._observers = tuple(o for o in layer._observers if any(o is old for old in observers))
            layer._apply_overrides()


def list_contexts(layers: Iterable[RobustBatchNorm]) -> list[tuple[RobustBatchNorm, Any, Any]]:
    """Return what contexts have set in these layers, for ``remove_other_contexts``."""
    return [(layer, layer._overrides, layer._observers) for layer in layers]
