"""Which layers are the last stage of a network: SAR and SoTTA leave it alone, being the most sensitive one."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from fnmatch import fnmatchcase

from torch import nn

from ..layers import RobustBatchNorm


def last_stage(model: nn.Module, layers: dict[str, RobustBatchNorm], given: str | Iterable[str] | None) -> set[str]:
    """The names of the layers in the last stage, and after it.

    ``given`` names them by shell patterns (``"layer4.*"``); an empty list says that there are none. Otherwise the
    model's structure tells: its stages are the parts, side by side at the first level where there are several, that
    hold two robust layers or more each. The last of them is the last stage: ``layer4`` of a ResNet, ``block3`` of a
    WideResNet. Where there are no such parts, the last quarter of the layers stands for it, and a warning says so.
    """
    names = list(layers)
    if given is not None:
        patterns = [given] if isinstance(given, str) else list(given)
        chosen = {name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)}
        if patterns and not chosen:
            raise ValueError(f"frozen={given!r} names none of the robust layers; there are {_some(names)}.")
        if len(chosen) == len(names):
            raise ValueError(f"frozen={given!r} names all {len(names)} robust layers; nothing would be left to learn.")
        return chosen
    parts = _parts(model, names)
    stages = [part for part in parts if len(part) >= 2]
    if len(stages) >= 2:
        return set(names[names.index(stages[-1][0]) :])
    count = max(1, len(names) // 4) if len(names) > 1 else 0
    chosen = set(names[len(names) - count :])
    warnings.warn(
        f"{type(model).__name__} shows no stages: its last {count} of {len(names)} robust layers are taken for the last"
        f" stage and not learned ({_some(sorted(chosen)) or 'none'}). Name them with frozen= to choose.",
        stacklevel=4,
    )
    return chosen


def _parts(model: nn.Module, names: list[str]) -> list[list[str]]:
    """The layers' names by the submodule they are in, at the first level where there is more than one."""
    prefix, parts = "", [names]
    while len(parts) == 1 and parts[0][0] != prefix.rstrip("."):
        groups: dict[str, list[str]] = {}
        for name in names:
            groups.setdefault(prefix + name[len(prefix) :].split(".")[0], []).append(name)
        parts = list(groups.values())
        prefix = next(iter(groups)) + "."
    return parts


def _some(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
