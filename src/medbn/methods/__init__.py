"""Test-time adaptation methods: one line around any model.

Every file of this folder that defines a subclass of Adapter adds methods, under their class names in lower case.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

from torch import nn

from .. import estimators
from .._errors import unknown_name
from ..convert import Names, convert
from ..estimators import Estimator
from ..layers import RobustBatchNorm
from ._call import refuse_inference_mode
from .base import Adapter, Learner

PRESETS = ("cifar10", "cifar100", "imagenet")


def _found() -> dict[str, type[Adapter]]:
    methods: dict[str, type[Adapter]] = {}
    for file in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{file.name}")
        for value in vars(module).values():
            if inspect.isclass(value) and issubclass(value, Adapter) and value not in (Adapter, Learner):
                methods[value.__name__.lower()] = value
    return methods


_methods = _found()


def available() -> list[str]:
    """The names that ``method=`` accepts.

    >>> available()
    ['eata', 'eta', 'mdia', 'past', 'sar', 'sema', 'sotta', 'source', 'tebn', 'tent']
    """
    return sorted(_methods)


def get(method: str) -> type[Adapter]:
    """The class of that name; case does not matter."""
    kind = _methods.get(method.lower()) if isinstance(method, str) else None
    if kind is None:
        raise unknown_name("method", method, _methods)
    return kind


def options(method: str, preset: str = "cifar10") -> dict[str, Any]:
    """A method's options and their values under a preset.

    >>> options("sema")
    {'momentum': 0.2, 'counted': False, 'logits': None, 'predict': 'before', 'seed': 0, 'graph': False}
    """
    if preset not in PRESETS:
        raise unknown_name("preset", preset, PRESETS)
    kind = get(method)
    found: dict[str, Any] = {}
    for base in kind.__mro__:
        if "__init__" not in vars(base):
            continue
        parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
        for parameter in parameters:
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                found.setdefault(parameter.name, parameter.default)
        if all(parameter.kind is not inspect.Parameter.VAR_KEYWORD for parameter in parameters):
            break  # it passes nothing on
    return {**found, **kind.presets.get(preset, {})}


def adapt(
    model: nn.Module,
    method: str = "tent",
    estimator: str | Estimator | None = None,
    *,
    preset: str = "cifar10",
    inplace: bool = False,
    include: Names = None,
    exclude: Names = None,
    **given: Any,
) -> Adapter:
    """Wrap a model in a test-time adaptation method; calling the result predicts *and* adapts.

    Args:
        model: any model with BatchNorm; its layers are made robust as needed. Source wraps any model at all.
        method: a name from ``medbn.methods.available()``.
        estimator: how the robust layers take their statistics; see ``medbn.estimators``. None keeps a model that has
            robust layers as it is, and is ``"median"`` for one that has none.
        preset: ``"cifar10"``, ``"cifar100"`` or ``"imagenet"``: the published options of the method for that benchmark.
        inplace: adapt this very model, whose layers are converted, whose parameters no longer require gradients but for
            the learned ones, and which is in eval(); otherwise a copy, and the caller's stays as it is.
        include: make only these BatchNorm layers robust; see ``medbn.convert``.
        exclude: never make these robust.
        given: the method's options, which ``medbn.methods.options(method)`` lists and its class explains.

    >>> import torch, medbn
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 6 * 6, 10))
    >>> tta = medbn.adapt(model, method="tent", estimator="median")
    >>> tta(torch.rand(16, 3, 8, 8)).shape
    torch.Size([16, 10])
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {type(model).__name__}.")
    refuse_inference_mode()
    for module in model.modules():
        if isinstance(module, Adapter):
            raise TypeError(
                f"the model is adapted by {type(module).__name__} already; pass the model inside: tta.model."
            )
    kind = get(method)
    known = options(method, preset)
    for name in given:
        if name not in known:
            raise unknown_name(f"option of {kind.__name__}", name, known)
    if estimator is not None:
        estimator = estimators.get(estimator)
    given = {name: list(value) if isinstance(value, Iterator) else value for name, value in given.items()}
    if inplace:  # what can go wrong shows on a copy
        adapt(model, method, estimator, preset=preset, include=include, exclude=exclude, **given)
    else:
        model = copy.deepcopy(model)
    if kind is not _methods["source"]:
        _make_robust(model, estimator, include, exclude)
    return kind(model, **{**kind.presets.get(preset, {}), **given}).begin()


def _make_robust(model: nn.Module, estimator: Estimator | None, include: Names, exclude: Names) -> None:
    """Convert what is plain, or give robust layers the estimator, if there is one to give."""
    robust = [layer for layer in model.modules() if isinstance(layer, RobustBatchNorm)]
    if estimator is None and robust and include is None and exclude is None:
        return
    nonfinite = {layer.nonfinite for layer in robust}
    options = {"nonfinite": nonfinite.pop() if len(nonfinite) == 1 else None, "include": include, "exclude": exclude}
    convert(model, "median" if estimator is None else estimator, **options)  # type: ignore[arg-type]
