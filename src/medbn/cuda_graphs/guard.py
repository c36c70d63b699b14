"""What a model's Python code reads, and whether it has changed since a capture."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..estimators import Estimator
from ..layers import RobustBatchNorm
from ..policies import Policy

PLAIN = (bool, int, float, str, type(None), Policy, Estimator, torch.dtype)
"""Types of immutable values that a model's code may read."""
CONTAINERS = (list, dict, set, deque)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
AVERAGES = ("ema_mean", "ema_var")
OF_TORCH = frozenset(vars(nn.Module()))
"""The attributes of every module."""


class Guard:
    """What a model's Python code reads, to find out later whether any of it has changed."""

    def __init__(self, model: nn.Module) -> None:
        self._values: list[tuple[dict[str, Any], str, Any]] = []
        self._sizes: list[tuple[dict[str, Any], int]] = []
        self._hooks: list[dict[Any, Any]] = []
        self._averages: list[tuple[dict[str, Any], str, Hashable]] = []
        self._containers: list[tuple[Any, list[Any]]] = []
        self._classes = [(module, type(module)) for module in model.modules()]
        for module, _ in self._classes:
            own = vars(module)
            self._values += [(own, name, v) for name, v in own.items() if isinstance(v, (*PLAIN, Tensor, tuple))]
            containers = [v for name, v in own.items() if name not in OF_TORCH and isinstance(v, CONTAINERS)]
            self._containers += [(container, _contents(container)) for container in containers]
            self._hooks += [own[kind] for kind in HOOKS if kind in own]
            for kind in ("_parameters", "_buffers", "_modules"):
                members = own[kind]
                moving = AVERAGES if kind == "_buffers" and isinstance(module, RobustBatchNorm) else ()
                for name, value in members.items():
                    if name in moving and value is not None:
                        self._averages.append((members, name, form(value)))
                    else:
                        self._values.append((members, name, value))
                self._sizes.append((members, len(members)))
        self._addresses = [(v, v.data_ptr()) for _, _, v in self._values if isinstance(v, Tensor)]

    def valid(self) -> bool:
        """Return whether all of it is as it was."""
        return (
            all(type(module) is kind for module, kind in self._classes)
            and all(_same(d.get(name), v) for d, name, v in self._values)
            and all(t.data_ptr() == address for t, address in self._addresses)
            and all(len(d) == size for d, size in self._sizes)
            and not any(self._hooks)
            and all(_contents(container) == before for container, before in self._containers)
            and all(isinstance(d[n], Tensor) and form(d[n]) == before for d, n, before in self._averages)
        )

    def averages(self) -> list[Tensor]:
        """Return the moving averages of all layers as they are now."""
        return [members[name] for members, name, _ in self._averages]

    @contextmanager
    def use_averages(self, averages: list[Tensor]) -> Iterator[None]:
        """Put other tensors in the place of the moving averages."""
        before = self.averages()
        try:
            self._set_averages(averages)
            yield
        finally:
            self._set_averages(before)

    def _set_averages(self, averages: list[Tensor]) -> None:
        for (members, name, _), value in zip(self._averages, averages, strict=True):
            members[name] = value


def _contents(container: Any) -> list[Any]:
    """Return which objects are in a container, in order."""
    items = container.items() if isinstance(container, dict) else container
    return [tuple(map(id, item)) if isinstance(container, dict) else id(item) for item in items]


def form(t: Tensor) -> tuple[Hashable, ...]:
    """Return the shape, strides, type and device of a tensor."""
    return (tuple(t.shape), t.stride(), t.dtype, t.device)


def _same(value: Any, other: Any) -> bool:
    if value is other:
        return True
    if type(value) is not type(other):
        return False
    if isinstance(value, tuple):  # before Python 3.11 even empty ones may be several objects
        return len(value) == len(other) and all(map(_same, value, other))
    return isinstance(value, PLAIN) and bool(value == other)
