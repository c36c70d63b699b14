"""Turn every BatchNorm of a model into a robust one, and back.

A layer changes its class, as torch's own lazy modules and parametrisations do, and stays the same object: parameters,
buffers, hooks, mode, names and every reference to it survive, also when the model itself is a BatchNorm.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _LazyNormBase

from . import estimators, policies
from ._normalise import isolates
from .estimators import Estimator
from .layers import RobustBatchNorm, RobustBatchNorm1d, RobustBatchNorm2d, RobustBatchNorm3d, tails
from .policies import Policy

Names = str | Iterable[str] | Callable[[str, nn.Module], bool] | None
Model = TypeVar("Model", bound=nn.Module)
Tail = Callable[[nn.Module, Tensor], Tensor]

_robust: dict[type[_BatchNorm], type[RobustBatchNorm]] = {
    nn.BatchNorm1d: RobustBatchNorm1d,
    nn.BatchNorm2d: RobustBatchNorm2d,
    nn.BatchNorm3d: RobustBatchNorm3d,
    nn.SyncBatchNorm: RobustBatchNorm,
}

# What Python itself writes into a class body, and a constructor: a subclass with nothing else normalises like its base.
_HARMLESS = {
    "__module__",
    "__qualname__",
    "__doc__",
    "__init__",
    "__annotations__",
    "__annotate__",
    "__annotate_func__",
}
_HARMLESS |= {"__annotations_cache__", "__constants__", "__parameters__", "__static_attributes__", "__firstlineno__"}


def convert(
    model: Model,
    estimator: str | Estimator = "median",
    policy: str | Policy = "batch",
    *,
    nonfinite: str | None = None,
    include: Names = None,
    exclude: Names = None,
) -> Model:
    """Make every BatchNorm1d/2d/3d and SyncBatchNorm of ``model`` a robust layer, in place.

    Args:
        model: any module; a BatchNorm itself too. Layers that are robust already take on the new settings.
        estimator: how a batch becomes a centre and a variance; see ``medbn.estimators``.
        policy: which statistics normalise; see ``medbn.policies``.
        nonfinite: what to do with images that have NaN or ±Inf; see ``medbn.functional.statistics``.
        include: convert only these layers: shell patterns of names (``"layer1.*"``), one or several, or a function of
            name and module.
        exclude: never convert these; the same kinds.

    Returns:
        The same model. If it cannot be converted, an error is raised and nothing has changed.

    Convert last: ``SyncBatchNorm.convert_sync_batchnorm`` would turn robust layers into plain synchronised ones.

    >>> model = convert(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), estimator="median")
    >>> type(model[1]).__name__, model[1].estimator, model[1].policy
    ('RobustBatchNorm2d', <estimator median>, batch())
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {type(model).__name__}.")
    estimator, policy = estimators.get(estimator), policies.get(policy)
    isolates(estimator, nonfinite)
    chosen = _choose(model, include, exclude)
    for name, layer in chosen.items():
        if layer.running_mean is None and (policy.reference is not None or estimator.prior):
            needs = f"estimator {estimator.name!r}" if estimator.prior else f"policy {policy}"
            other = "an estimator without a prior" if estimator.prior else "policy 'batch'"
            raise ValueError(
                f"layer {name!r} has no source statistics (track_running_stats=False), which {needs} needs;"
                f" exclude it, or use {other}."
            )
    targets = {name: _target(name, layer) for name, layer in chosen.items() if not isinstance(layer, RobustBatchNorm)}
    if any(isinstance(layer, nn.SyncBatchNorm) for layer in chosen.values()) and _in_process_group():
        warnings.warn(
            "SyncBatchNorm layers become robust layers whose statistics are those of each process alone;"
            " they are not synchronised across the process group.",
            stacklevel=2,
        )
    for name, layer in chosen.items():
        if isinstance(layer, RobustBatchNorm):
            if (layer.estimator, layer.policy) != (estimator, policy):
                layer.reset()  # what was averaged belongs to the old settings
            layer.estimator, layer.nonfinite, layer.policy = estimator, nonfinite, policy
        else:
            original = type(layer)
            layer.__class__ = targets[name]
            assert isinstance(layer, RobustBatchNorm)
            layer._add_robust_attributes(estimator, policy, nonfinite)
            layer._converted_from = original
            layer._tail = _qualified(original) if _qualified(original) in tails else None
    return model


def revert(model: Model) -> Model:
    """Make every robust layer the BatchNorm it was, in place; outputs are those of the original, to the bit."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {type(model).__name__}.")
    originals = {
        layer: _original(name, layer) for name, layer in model.named_modules() if isinstance(layer, RobustBatchNorm)
    }
    for layer, original in originals.items():
        layer._remove_robust_attributes()
        layer.__class__ = original  # type: ignore[assignment]
    return model


def register_tail(qualified_name: str, tail: Tail) -> None:
    """Say what a BatchNorm subclass does after normalising, so that ``convert`` can keep it.

    ``qualified_name`` is the class's module and name; ``tail(layer, y)`` gets the converted layer, which still has all
    its attributes, and the normalised ``y``. timm's ``BatchNormAct2d`` and ``SyncBatchNormAct`` are known already.

    >>> register_tail("mypackage.layers.BatchNormReLU", lambda layer, y: y.relu())
    """
    tails[qualified_name] = tail


def _drop_then_act(layer: nn.Module, y: Tensor) -> Tensor:
    for part in ("drop", "act"):
        if hasattr(layer, part):
            y = getattr(layer, part)(y)
    return y


register_tail("timm.layers.norm_act.BatchNormAct2d", _drop_then_act)
register_tail("timm.layers.norm_act.SyncBatchNormAct", _drop_then_act)


def _choose(model: nn.Module, include: Names, exclude: Names) -> dict[str, _BatchNorm]:
    """The layers to convert, each once, under the first of its names that is asked for."""
    names: dict[_BatchNorm, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, _BatchNorm):
            names.setdefault(module, []).append(name)
    if not names:
        raise ValueError(
            f"{type(model).__name__} has no BatchNorm layer to make robust. Layers that keep no batch statistics"
            " (LayerNorm, GroupNorm, frozen BatchNorm) need no protection, and scripted modules cannot be converted."
        )
    include, exclude = _patterns("include", include, names), _patterns("exclude", exclude, names)
    chosen = {}
    for layer, known_as in names.items():
        wanted = [name for name in known_as if include is None or _matches(include, name, layer)]
        if wanted and not (exclude is not None and any(_matches(exclude, name, layer) for name in known_as)):
            chosen[wanted[0]] = layer
    if not chosen:
        raise ValueError(f"include={include!r}, exclude={exclude!r} leave none of the {len(names)} BatchNorm layers.")
    return chosen


def _patterns(option: str, given: Names, layers: dict[_BatchNorm, list[str]]) -> Names:
    """Patterns as a tuple, each of which names some layer: a typing error must not leave a layer unprotected."""
    if given is None or callable(given):
        return given
    patterns = (given,) if isinstance(given, str) else tuple(given)
    everything = [name for known_as in layers.values() for name in known_as]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in everything):
            below = (
                f"; did you mean {pattern + '.*'!r}?" if any(n.startswith(pattern + ".") for n in everything) else "."
            )
            some = ", ".join(map(repr, everything[:5])) + (" and more" if len(everything) > 5 else "")
            raise ValueError(f"{option}={pattern!r} names none of the BatchNorm layers, which are {some}{below}")
    return patterns


def _matches(names: Names, name: str, layer: nn.Module) -> bool:
    if callable(names):
        return names(name, layer)
    return any(fnmatchcase(name, pattern) for pattern in names or ())


def _target(name: str, layer: _BatchNorm) -> type[RobustBatchNorm]:
    """The robust class for a layer, if turning it into that loses nothing."""
    kind = type(layer)
    if hasattr(layer, "parametrizations"):
        raise ValueError(f"layer {name!r} is parametrised; remove its parametrisations first, and add them afterwards.")
    if "forward" in vars(layer):
        raise ValueError(
            f"layer {name!r} has a forward() of its own, set on the object, which would go on replacing ours;"
            f" delete it, or leave the layer out with exclude={name!r}."
        )
    if isinstance(layer, _LazyNormBase):
        raise ValueError(
            f"layer {name!r} is a {kind.__name__} that has seen no input yet; run one batch through it first."
        )
    if kind in _robust:
        return _robust[kind]
    if _qualified(kind) in tails:
        return RobustBatchNorm
    for base in kind.__mro__:
        if base in _robust:
            return _robust[base]
        if set(vars(base)) - _HARMLESS:
            break
    raise ValueError(
        f"layer {name!r} is a {_qualified(kind)}, a BatchNorm subclass that does something of its own, which converting"
        f" would silently drop. Leave it out with exclude={name!r}, or tell what it does after normalising:"
        f" medbn.register_tail({_qualified(kind)!r}, tail)."
    )


def _original(name: str, layer: RobustBatchNorm) -> type[_BatchNorm]:
    if hasattr(layer, "parametrizations"):
        raise ValueError(f"layer {name!r} is parametrised; remove its parametrisations first.")
    if layer._converted_from is not None:
        return layer._converted_from
    for plain, robust in _robust.items():
        if robust is not RobustBatchNorm and isinstance(layer, robust):
            return plain
    raise ValueError(
        f"layer {name!r} was built as a RobustBatchNorm for input of any rank, which torch has no layer for."
    )


def _qualified(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _in_process_group() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
