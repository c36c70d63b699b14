"""Convert every BatchNorm of a model into a robust layer, and back.

A layer changes its class, as torch's own lazy modules and parametrisations do, and stays the same object: parameters,
buffers, hooks, mode, names and every reference to it stay valid, also when the model itself is a BatchNorm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _LazyNormBase

from . import _exportable, distributed, estimators, fusion, policies
from ._check_types import wrong_type
from ._errors import abbreviate
from ._isolate import isolates
from .distributed import Group
from .estimators import Estimator
from .layers import RobustBatchNorm, RobustBatchNorm1d, RobustBatchNorm2d, RobustBatchNorm3d, tails
from .policies import Policy

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Names = str | Iterable[str] | Callable[[str, nn.Module], bool] | None
Model = TypeVar("Model", bound=nn.Module)
Tail = Callable[[nn.Module, Tensor], Tensor]

_robust: dict[type[_BatchNorm], type[RobustBatchNorm]] = {
    nn.BatchNorm1d: RobustBatchNorm1d,
    nn.BatchNorm2d: RobustBatchNorm2d,
    nn.BatchNorm3d: RobustBatchNorm3d,
    nn.SyncBatchNorm: RobustBatchNorm,
}

# What Python itself writes into a class body, and a constructor: a subclass that defines only these normalises like
# its base.
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
    group: str | ProcessGroup | Group | None = None,
    exportable: bool = False,
    fuse: bool = False,
) -> Model:
    """Convert every BatchNorm1d/2d/3d and SyncBatchNorm of ``model`` into a robust layer, in place.

    Args:
        model: any module, also a BatchNorm itself. Layers that are robust already get the new settings.
        estimator: how a batch becomes a centre and a variance; see ``medbn.estimators``.
        policy: which statistics the layers normalise with; see ``medbn.policies``.
        nonfinite: what to do with images that have NaN or ±Inf; see ``medbn.functional.statistics``.
        include: convert only these layers: shell patterns of names (``"layer1.*"``), one or several, or a function of
            name and module that returns whether to convert.
        exclude: do not convert these layers; given in the same ways.
        group: the processes that have a part each of every batch; the layers then take the statistics of the whole
            batch, exactly. ``"world"`` for the default group of ``torch.distributed``, a process group, or ``"local"``
            for each process alone. None keeps what a layer has: a SyncBatchNorm its own group, robust layers theirs,
            and others are local. docs/scale.md has more.
        exportable: compute the estimator in plain operators (sort, gather), which ``torch.onnx.export`` takes. The same
            numbers, more slowly.
        fuse: compute a layer and the ReLU behind it, with an addition between if there is one, in one kernel, which
            Triton has. The same to rounding. ``torch.fx`` finds where modules call both, and those modules get a
            forward that calls both at once; ``medbn.fused_layers`` names the layers. Numbers and flags that a forward
            reads are read once; it runs as before once an attribute of its module is set. A ValueError says so where
            there are none. ``revert`` undoes it; converting again keeps it. Elsewhere than in Triton's kernels, and
            where something may look at what is between layer and ReLU (hooks, masks, ``torch.compile``, train()), the
            original operations run, to the bit. Convert before other threads run models, which ``torch.fx`` disturbs
            for some milliseconds. docs/speed.md has more.

    Returns:
        The same model. If a layer cannot be converted, an error is raised and the model is unchanged.

    Convert last: ``SyncBatchNorm.convert_sync_batchnorm`` would turn robust layers into plain synchronised ones.

    >>> model = convert(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), estimator="median")
    >>> type(model[1]).__name__, model[1].estimator, model[1].policy
    ('RobustBatchNorm2d', <estimator median>, batch())
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {type(model).__name__}.")
    for name, value in (("exportable", exportable), ("fuse", fuse)):
        if problem := wrong_type(value, "bool"):
            raise TypeError(f"{name} {problem}")
    estimator, policy = estimators.get(estimator), policies.get(policy)
    estimator = _exportable.get(estimator) if exportable else estimator
    isolates(estimator, nonfinite)
    chosen_group = distributed.get(group)
    layers = _choose_layers(model, include, exclude)
    for name, layer in layers.items():
        if layer.running_mean is None and (policy.reference is not None or estimator.prior):
            needs = f"estimator {estimator.name!r}" if estimator.prior else f"policy {policy}"
            other = "an estimator without a prior" if estimator.prior else "policy 'batch'"
            raise ValueError(
                f"layer {name!r} has no source statistics (track_running_stats=False), which {needs} needs;"
                f" exclude it, or use {other}."
            )
    plain = {name: layer for name, layer in layers.items() if not isinstance(layer, RobustBatchNorm)}
    forwards = fusion.find(model, {layer for layer in layers.values() if not _has_tail(layer)}) if fuse else {}
    classes = {name: _robust_class(name, layer) for name, layer in plain.items()}
    for name, layer in layers.items():
        if isinstance(layer, RobustBatchNorm):
            if (layer.estimator, layer.policy) != (estimator, policy):
                layer.reset()  # its moving average was computed with the old settings
            layer.estimator, layer.nonfinite, layer.policy = estimator, nonfinite, policy
        else:
            original = type(layer)
            own_group = Group(layer.process_group) if isinstance(layer, nn.SyncBatchNorm) else None
            layer.__class__ = classes[name]
            assert isinstance(layer, RobustBatchNorm)
            layer._add_robust_attributes(estimator, policy, nonfinite)
            layer._converted_from = original
            layer._tail = _qualified_name(original) if _qualified_name(original) in tails else None
            if own_group is not None:
                layer._group = own_group
                vars(layer)["process_group"] = None  # which cannot be copied
        if group is not None:
            layer.group = chosen_group
    if fuse:
        fusion.fuse(model, forwards)
    return model


def revert(model: Model) -> Model:
    """Convert every robust layer back into the BatchNorm it was, in place; outputs are the original's, to the bit."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {type(model).__name__}.")
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, RobustBatchNorm)}
    originals = {layer: _original_class(name, layer) for name, layer in layers.items()}
    fusion.unfuse(model)
    for layer, original in originals.items():
        process_group = None if layer.group is None else layer.group.process_group
        layer._remove_robust_attributes()
        layer.__class__ = original  # type: ignore[assignment]
        if isinstance(layer, nn.SyncBatchNorm):
            vars(layer)["process_group"] = process_group
    return model


def register_tail(qualified_name: str, tail: Tail) -> None:
    """Register what a BatchNorm subclass does after normalising, so that ``convert`` can convert it.

    timm's ``BatchNormAct2d`` and ``SyncBatchNormAct`` are registered already.

    Args:
        qualified_name: the class's module and name.
        tail: a function of the converted layer, which still has all its attributes, and of the normalised output; it
            returns the layer's output.

    >>> register_tail("mypackage.layers.BatchNormReLU", lambda layer, y: y.relu())
    """
    tails[qualified_name] = tail


def _drop_and_activate(layer: nn.Module, y: Tensor) -> Tensor:
    """Apply the dropout and the activation of timm's BatchNorm layers."""
    for part in ("drop", "act"):
        if hasattr(layer, part):
            y = getattr(layer, part)(y)
    return y


register_tail("timm.layers.norm_act.BatchNormAct2d", _drop_and_activate)
register_tail("timm.layers.norm_act.SyncBatchNormAct", _drop_and_activate)


def _choose_layers(model: nn.Module, include: Names, exclude: Names) -> dict[str, _BatchNorm]:
    """Return the layers to convert, each once, by the first of its names that is included."""
    names: dict[_BatchNorm, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, _BatchNorm):
            names.setdefault(module, []).append(name)
    if not names:
        raise ValueError(
            f"{type(model).__name__} has no BatchNorm layer to make robust. Layers that keep no batch statistics"
            " (LayerNorm, GroupNorm, frozen BatchNorm) need no protection, and scripted modules cannot be converted."
        )
    include, exclude = _check_patterns("include", include, names), _check_patterns("exclude", exclude, names)
    layers = {}
    for layer, own_names in names.items():
        included = [name for name in own_names if include is None or _matches(include, name, layer)]
        if included and not (exclude is not None and any(_matches(exclude, name, layer) for name in own_names)):
            layers[included[0]] = layer
    if not layers:
        raise ValueError(f"include={include!r}, exclude={exclude!r} leave none of the {len(names)} BatchNorm layers.")
    return layers


def _check_patterns(option: str, names: Names, layers: dict[_BatchNorm, list[str]]) -> Names:
    """Return the patterns as a tuple; raise an error for one that matches no layer, so that a typo leaves none out."""
    if names is None or callable(names):
        return names
    patterns = (names,) if isinstance(names, str) else tuple(names)
    existing = [name for own_names in layers.values() for name in own_names]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in existing):
            is_parent = any(name.startswith(pattern + ".") for name in existing)
            hint = f"; did you mean {pattern + '.*'!r}?" if is_parent else "."
            some = abbreviate([repr(name) for name in existing])
            raise ValueError(f"{option}={pattern!r} names none of the BatchNorm layers, which are {some}{hint}")
    return patterns


def _matches(names: Names, name: str, layer: nn.Module) -> bool:
    if callable(names):
        return names(name, layer)
    return any(fnmatchcase(name, pattern) for pattern in names or ())


def _has_tail(layer: _BatchNorm) -> bool:
    """Return whether the layer's class does more than normalising."""
    if isinstance(layer, RobustBatchNorm):
        return layer._tail is not None
    return _qualified_name(type(layer)) in tails


def _robust_class(name: str, layer: _BatchNorm) -> type[RobustBatchNorm]:
    """Return the robust class for a layer; raise an error if converting would lose something."""
    cls = type(layer)
    if hasattr(layer, "parametrizations"):
        raise ValueError(f"layer {name!r} is parametrised; remove its parametrisations first, and add them afterwards.")
    if "forward" in vars(layer):
        raise ValueError(
            f"layer {name!r} has a forward() set on the object, which would override the robust layer's;"
            f" delete it, or leave the layer out with exclude={name!r}."
        )
    if isinstance(layer, _LazyNormBase):
        raise ValueError(f"layer {name!r} is a {cls.__name__} without parameters yet; run one batch through it first.")
    if cls in _robust:
        return _robust[cls]
    if _qualified_name(cls) in tails:
        return RobustBatchNorm
    for base in cls.__mro__:
        if base in _robust:
            return _robust[base]
        if set(vars(base)) - _HARMLESS:
            break
    raise ValueError(
        f"layer {name!r} is a {_qualified_name(cls)}, a BatchNorm subclass with code of its own, which converting would"
        f" drop. Leave it out with exclude={name!r}, or register what it does after normalising:"
        f" medbn.register_tail({_qualified_name(cls)!r}, tail)."
    )


def _original_class(name: str, layer: RobustBatchNorm) -> type[_BatchNorm]:
    """Return the class that a robust layer was converted from, or the torch class of its rank."""
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


def _qualified_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
