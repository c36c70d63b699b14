"""adapt: wrap a model in a test-time adaptation method."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.parameter import is_lazy

from .. import distributed, estimators, fusion
from .._check_types import wrong_type
from .._errors import unknown_name
from ..convert import Names, convert
from ..distributed import Group
from ..estimators import Estimator
from ..layers import RobustBatchNorm
from ._affine import has_batch_norm
from ._call import refuse_inference_mode
from ._registry import available, get, options
from .base import Adapter

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

DEFAULT_ESTIMATOR = "image_median@0.5"
"""The estimator of a model that has none yet."""
OWN_OPTIONS = ("method", "estimator", "preset", "inplace", "include", "exclude", "group", "fuse")
"""Arguments of ``adapt`` itself, which an unknown option may be a misspelling of."""


def adapt(
    model: nn.Module,
    method: str = "past",
    estimator: str | Estimator | None = None,
    *,
    preset: str = "cifar10",
    inplace: bool = False,
    include: Names = None,
    exclude: Names = None,
    group: str | ProcessGroup | Group | None = None,
    fuse: bool = False,
    **method_options: Any,
) -> Adapter:
    """Wrap a model in a test-time adaptation method; calling the result predicts *and* adapts.

    The defaults are the safest combination that has been measured: ``past`` with ``"image_median@0.5"``. The MedBN
    paper's are ``method="tent", estimator="median"``.

    Args:
        model: any model; its BatchNorm layers are made robust as needed. A model without BatchNorm has no batch
            statistics to protect: methods that learn adapt its LayerNorm, GroupNorm, InstanceNorm and RMSNorm layers
            and say so in a warning, and methods that adapt statistics alone refuse it.
        method: a name from ``medbn.methods.available()``.
        estimator: how the robust layers estimate their statistics; see ``medbn.estimators``. None keeps the estimators
            of a model that has robust layers, and is ``"image_median@0.5"`` for one that has none. Not for a model
            without BatchNorm.
        preset: ``"cifar10"``, ``"cifar100"`` or ``"imagenet"``: the published options of the method for that benchmark.
        inplace: adapt this very model: its layers are converted, only learned parameters keep requiring gradients, and
            it is switched to eval(). Otherwise a copy is adapted, and the caller's model stays as it is.
        include: make only these BatchNorm layers robust; see ``medbn.convert``.
        exclude: never make these robust.
        group: the processes that call the adapter together, each with its part of a batch; as in ``medbn.convert``. Its
            state is then the same in all of them. docs/scale.md has more.
        fuse: compute layers together with the ReLU behind them, as in ``medbn.convert``. Nothing for a method that
            normalises with training statistics alone, as ``"source"``.
        method_options: the method's options, which ``medbn.methods.options(method)`` lists and its class explains.

    >>> import torch, medbn
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 6 * 6, 10))
    >>> tta = medbn.adapt(model)
    >>> tta(torch.rand(16, 3, 8, 8)).shape
    torch.Size([16, 10])
    >>> paper = medbn.adapt(model, method="tent", estimator="median")
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {type(model).__name__}.")
    refuse_inference_mode()
    for module in model.modules():
        if isinstance(module, Adapter):
            raise TypeError(
                f"the model is adapted by {type(module).__name__} already; pass the model inside: tta.model."
            )
    if any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        raise ValueError("the model has lazy layers without shapes: call it with a batch, and adapt it afterwards.")
    kind = get(method)
    names = options(method, preset)
    for name in method_options:
        if name not in names:
            raise unknown_name(f"option of {kind.__name__}", name, [*names, *OWN_OPTIONS])
    for name, value in (("inplace", inplace), ("fuse", fuse)):
        if problem := wrong_type(value, "bool"):
            raise TypeError(f"{name} {problem}")
    if estimator is not None:
        estimator = estimators.get(estimator)
    # An iterator is consumed once, and in-place adaptation needs its contents twice.
    method_options = {n: list(value) if isinstance(value, Iterator) else value for n, value in method_options.items()}
    robust, processes = has_batch_norm(model), distributed.get(group)
    if kind.adapts and not robust:
        _check_without_batch_norm(model, kind, estimator, include, exclude, fuse)
    copied = copy.deepcopy(model)
    for each in (copied, model) if inplace else (copied,):  # what can fail fails on the copy
        if kind.adapts and robust:
            _make_robust(each, estimator, include, exclude, group, fuse)
        adapter = kind(each, **{**kind.presets.get(preset, {}), **method_options})
        adapter.given_group = processes
        adapter.begin()
    if kind.adapts and not robust:
        warnings.warn(
            f"{type(model).__name__} has no BatchNorm, so there are no batch statistics to make robust;"
            f" {kind.label} adapts the rest.",
            stacklevel=2,
        )
    return adapter


def _check_without_batch_norm(
    model: nn.Module,
    kind: type[Adapter],
    estimator: Estimator | None,
    include: Names,
    exclude: Names,
    fuse: bool,
) -> None:
    """Raise an error if a model without BatchNorm has nothing to adapt, or for options that it has no use for."""
    name = type(model).__name__
    if kind.needs_batch_norm:
        others = [each for each in available() if not (get(each).adapts and get(each).needs_batch_norm)]
        raise ValueError(
            f"{name} has no BatchNorm layer, and {kind.label} adapts nothing but batch statistics;"
            f" for such a model there are {', '.join(others)}."
        )
    given = {"estimator": estimator, "include": include, "exclude": exclude, "fuse": fuse or None}
    for option, value in given.items():
        if value is not None:
            raise ValueError(
                f"{option}= says how batch statistics are made robust, and {name} has no BatchNorm layer, so no image's"
                f" normalisation depends on others; leave {option}= out."
            )


def _make_robust(
    model: nn.Module, estimator: Estimator | None, include: Names, exclude: Names, group: Any, fuse: bool
) -> None:
    """Convert plain BatchNorm layers, and give all robust layers the estimator if there is one."""
    robust = [layer for layer in model.modules() if isinstance(layer, RobustBatchNorm)]
    if estimator is None and robust and include is None and exclude is None:
        for layer in robust if group is not None else ():
            layer.group = group
        if fuse:
            fusion.fuse(model, fusion.find(model, set(robust)))
        return
    nonfinite = {layer.nonfinite for layer in robust}
    options = {"include": include, "exclude": exclude, "group": group, "fuse": fuse}
    options["nonfinite"] = nonfinite.pop() if len(nonfinite) == 1 else None
    convert(model, DEFAULT_ESTIMATOR if estimator is None else estimator, **options)
