"""Attacks by name: DIA with certain options, and what users register."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from .._registry import Registry
from .base import Attack
from .dia import DIA
from .ensemble import worst_case
from .objectives import NotchHighEntropy, Objective, Targeted

Factory = Callable[..., Attack]
"""From an objective and the options of an attack to that attack."""

_registry: Registry[Factory] = Registry("attack")
for _name, _options in {
    "dia": {},
    "straight_through": {"gradient": "straight_through"},
    "smooth": {"gradient": "smooth"},
    "semi_white_box": {"knowledge": "semi"},
    "grey_box": {"knowledge": "grey"},
    "transfer": {"knowledge": "transfer"},
    "adaptive": {"alignment": 1.0},
    "consistent": {"consistency": 1.0},
    "unrolled": {"unroll": 1},
}.items():
    _registry.register(_name, partial(DIA, **_options))  # type: ignore[arg-type]
_registry.register("worst_case", worst_case)
OWN_SIGHT = ("grey_box", "transfer")
"""Attacks by somebody who sees no images but her own."""


def available() -> list[str]:
    """Return the names of ready-made attacks.

    >>> available()  # doctest: +NORMALIZE_WHITESPACE
    ['adaptive', 'consistent', 'dia', 'grey_box', 'semi_white_box', 'smooth', 'straight_through', 'transfer',
    'unnoticed', 'unrolled', 'worst_case']
    """
    return sorted(_registry.available())


def get(name: str, objective: Objective | None = None, **options: Any) -> Attack:
    """Return a ready-made attack.

    Args:
        name: one of ``available()``.
        objective: what it maximises; None for ``Targeted()``, or ``NotchHighEntropy()`` where she sees her own images
            alone, as in ``"grey_box"`` and ``"transfer"``.
        options: those of ``DIA``; they override what the name sets.

    >>> get("straight_through", steps=20).gradient
    'straight_through'
    """
    factory = _registry.get(name)
    if objective is None:
        objective = NotchHighEntropy() if name in OWN_SIGHT else Targeted()
    return factory(objective, **options)


def register(name: str, *, replace: bool = False) -> Callable[[Factory], Factory]:
    """Return a decorator that registers an attack: a subclass of ``DIA``, or a function of an objective and options.

    >>> from medbn.attacks import project
    >>> @register("unsigned")
    ... class Unsigned(DIA):
    ...     def ascend(self, malicious, gradient, clean):
    ...         step = self.step_size * gradient / gradient.abs().amax().clamp(min=1e-12)
    ...         return project(malicious + step, clean, self.epsilon)
    >>> type(get("unsigned", steps=20)).__name__
    'Unsigned'
    >>> unregister("unsigned")
    """
    return _registry.register(name, replace=replace)


def unregister(name: str) -> None:
    """Remove a name."""
    _registry.unregister(name)
