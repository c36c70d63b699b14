"""Which layers are the last stage of a network: SAR and SoTTA leave it alone, being the most sensitive one."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from fnmatch import fnmatchcase

from torch import nn

from ..layers import RobustBatchNorm


def last_stage(model: nn.Module, layers: dict[str, RobustBatchNorm], given: str | Iterable[str] | None) -> set[str]:
    """Return the names of the layers in the last stage and after it.

    ``given`` names them by shell patterns (``"layer4.*"``); an empty list says that there are none. Otherwise the
    model's structure tells: its stages are the parts, side by side at the first level where there are several, that
    hold two robust layers or more each. The last of them is the last stage: ``layer4`` of a ResNet, ``block3`` of a
    WideResNet. Where there are no such parts, the last quarter of the layers stands for it, and a warning says so.
    """
    names = list(layers)
    if given is not None:
        patterns = [given] if isinstance(given, str) else list(given)
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ValueError(f"frozen={pattern!r} names none of the robust layers; there are {_some(names)}.")
        chosen = {name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)}
        if len(chosen) == len(names):
            raise ValueError(f"frozen={given!r} names all {len(names)} robust layers; nothing would be left to learn.")
        return chosen
    stages = _stages(names)
    if stages:
        return set(names[names.index(stages[-1][0]) :])
    count = max(1, len(names) // 4) if len(names) > 1 else 0
    last = names[len(names) - count :]
    done = f"the last {count} of its {len(names)} robust layers stand for the last and are not learned: {_some(last)}"
    warnings.warn(
        f"{type(model).__name__} shows no stages: {done if count else 'everything is learned'}."
        " Name what not to learn with frozen= to choose.",
        stacklevel=6,
    )
    return set(last)


def _stages(names: list[str]) -> list[list[str]]:
    """The layers' names by stage, at the first level where there are several; none if there is no such level."""
    depth = 0
    while True:
        groups: dict[str, list[str]] = {}
        for name in names:
            groups.setdefault(".".join(name.split(".")[: depth + 1]), []).append(name)
        stages = [group for group in groups.values() if len(group) >= 2]
        if len(stages) != 1:
            return stages
        names, depth = stages[0], depth + 1


def _some(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
