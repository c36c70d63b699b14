"""A forward of a module as Python code, which copies share and pickles contain."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from torch import nn

CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
"""Modules whose children a forward may call one by one."""


def child_names(module: nn.Module) -> list[Any]:
    """Return the names of a module's children, and behind them a list of the same kind for each container."""
    children: dict[str, Any] = module._modules
    return [*children, *[child_names(child) for child in children.values() if isinstance(child, CONTAINERS)]]


class _Imported:
    """The name of a Python module, which itself cannot be pickled."""

    def __init__(self, name: str) -> None:
        self.name = name


class FusedForward:
    """A forward with fewer operations than that of the module's class.

    Args:
        source: code of a function ``forward(self, ...)``.
        names: what the code refers to.
        inputs: how many tensors it takes.
        layers: the names in the module of the layers whose ReLU it includes.
        children: ``child_names`` of the module when it was fused.
    """

    def __init__(
        self, source: str, names: Mapping[str, Any], inputs: int, layers: tuple[str, ...], children: list[Any]
    ) -> None:
        self.source, self.inputs, self.layers, self.children = source, inputs, layers, children
        self.names = {name: _Imported(v.__name__) if isinstance(v, ModuleType) else v for name, v in names.items()}
        namespace = {
            name: importlib.import_module(v.name) if isinstance(v, _Imported) else v for name, v in self.names.items()
        }
        exec(compile(source, "<a forward fused by medbn>", "exec"), namespace)
        self.run: Any = namespace["forward"]

    def fits(self, module: nn.Module) -> bool:
        """Return whether a module has the children that it had: with another one its own forward may do more."""
        return self.children == child_names(module)

    def __reduce__(self) -> tuple[Any, ...]:
        return FusedForward, (self.source, self.names, self.inputs, self.layers, self.children)

    def __deepcopy__(self, memo: dict[int, Any]) -> FusedForward:
        return self
