"""The last stage of a network. SAR and SoTTA do not learn it, because it is the most sensitive one."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from torch import nn

from .._errors import abbreviate


def last_stage(model: nn.Module, layers: Mapping[str, nn.Module], frozen: str | Iterable[str] | None) -> set[str]:
    """Return the names of the layers in the last stage and after it.

    The stages of a model are the submodules, side by side at the first level that has several of them, that contain two
    or more of the layers each. The last one is ``layer4`` of a ResNet and ``block3`` of a WideResNet. The blocks of a
    vision transformer are all alike; the last quarter of them is returned, which is blocks 9 to 11 of a ViT-Base, with
    the layers behind them, as in SAR's code. For a model without such submodules the last quarter of the layers is
    returned, with a warning.

    Args:
        model: the model.
        layers: its normalisation layers, by name.
        frozen: shell patterns that name the layers to return instead (``"layer4.*"``); an empty list for none.
    """
    names = list(layers)
    if frozen is not None:
        return _match(names, [frozen] if isinstance(frozen, str) else list(frozen))
    stages = _find_stages(names)
    if stages:
        count = max(1, len(stages) // 4) if _are_alike([model.get_submodule(stage) for stage in stages]) else 1
        return set(names[names.index(list(stages.values())[-count][0]) :])
    count = max(1, len(names) // 4) if len(names) > 1 else 0
    last = names[len(names) - count :]
    consequence = (
        f"the last {count} of its {len(names)} normalisation layers are not learned: {_quote(last)}"
        if count
        else "all its normalisation layers are learned"
    )
    warnings.warn(
        f"no stages found in {type(model).__name__}, so {consequence}. Choose with frozen= what not to learn.",
        stacklevel=6,
    )
    return set(last)


def _match(names: list[str], patterns: list[str]) -> set[str]:
    """Return the names that match a pattern; raise if a pattern matches none, or if all names match."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(f"frozen={pattern!r} names none of the normalisation layers; there are {_quote(names)}.")
    matches = {name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)}
    if len(matches) == len(names):
        raise ValueError(
            f"frozen={patterns!r} names all {len(names)} normalisation layers; nothing would be left to learn."
        )
    return matches


def group_stages(names: list[str]) -> list[list[str]]:
    """Return the layers' names by stage, at the first level with several stages; an empty list if there is none."""
    return list(_find_stages(names).values())


def _find_stages(names: list[str]) -> dict[str, list[str]]:
    """Return the layers' names by the name of their stage."""
    depth = 0
    while True:
        groups: dict[str, list[str]] = {}
        for name in names:
            groups.setdefault(".".join(name.split(".")[: depth + 1]), []).append(name)
        stages = {stage: group for stage, group in groups.items() if len(group) >= 2}
        if len(stages) != 1:
            return stages
        names, depth = next(iter(stages.values())), depth + 1


def _are_alike(stages: list[nn.Module]) -> bool:
    """Return whether all stages are blocks of one class with equal shapes, as in a vision transformer."""
    if isinstance(stages[0], nn.Sequential):
        return False
    shapes = [(type(stage), [tuple(p.shape) for p in stage.parameters()]) for stage in stages]
    return all(shape == shapes[0] for shape in shapes)


def _quote(names: list[str]) -> str:
    return abbreviate([repr(name) for name in names])
