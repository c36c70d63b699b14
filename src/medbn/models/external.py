"""Models from elsewhere: ``torchvision:resnet50``, ``timm:resnet50``, or a user's ``module:function``."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from torch import nn

from .input_normalisation import IMAGENET_MEAN, IMAGENET_STD, NormalisedModel

LIBRARIES = ("torchvision", "timm")
SIZES = ("classes", "channels")
"""The options that ``medbn run`` and ``medbn train`` give to a user's function."""


def from_library(library: str, name: str, pretrained: bool, options: dict[str, Any]) -> NormalisedModel:
    """Return a model of torchvision or timm behind its input normalisation.

    Args:
        library: "torchvision" or "timm".
        name: the model's name there.
        pretrained: whether to load the library's default weights.
        options: ``classes``, ``channels``, ``mean``, ``std``, and what the library's function takes.
    """
    options = dict(options)
    mean, std = options.pop("mean", None), options.pop("std", None)
    classes, channels = options.pop("classes", None), options.pop("channels", 3)
    if classes is not None:
        options["num_classes"] = classes
    constants: Mapping[str, Any] = {}
    if library == "torchvision":
        if channels != 3:
            raise ValueError(f"channels={channels}: 'torchvision:{name}' takes 3 channels.")
        package = _import_library("torchvision.models")
        model = package.get_model(name, weights="DEFAULT" if pretrained else None, **options)
    else:
        if channels != 3:
            options["in_chans"] = channels
        model = _import_library("timm").create_model(name, pretrained=pretrained, **options)
        cfg = getattr(model, "pretrained_cfg", None)
        constants = cfg if isinstance(cfg, Mapping) else {}
        pretrained_classes = constants.get("num_classes")
        if pretrained and classes is not None and pretrained_classes not in (None, classes):
            raise ValueError(
                f"classes={classes}: the default weights of 'timm:{name}' have {pretrained_classes} classes, and timm"
                " would add an untrained classifier. Omit classes=, or load weights of your own."
            )
        if channels != 3:
            constants = {}  # the library's are for three channels
    if mean is None:
        mean = constants.get("mean") or (IMAGENET_MEAN if channels == 3 else sum(IMAGENET_MEAN) / 3)
    if std is None:
        std = constants.get("std") or (IMAGENET_STD if channels == 3 else sum(IMAGENET_STD) / 3)
    return NormalisedModel(model, mean, std, channels)


def from_function(name: str, options: dict[str, Any]) -> nn.Module:
    """Import ``module:function``, call it, and return the model that it returns.

    Args:
        name: the module and the function, ``build(classes, channels)``: a function that leaves one of the two out
            returns a model in which that size is fixed.
        options: ``classes`` and ``channels``, and further options of the function.
    """
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists, and something that it imports does not
        raise ValueError(
            f"model {name!r}: there is no module {error.name!r} on Python's path, which the current folder is not part"
            " of (PYTHONPATH=. adds it)."
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ValueError(f"model {name!r}: module {module_name!r} has no function {function_name!r}.")
    options = _accepted_sizes(function, options)
    try:
        model = function(**options)
    except TypeError as error:
        raise ValueError(f"model {name!r}, called with {', '.join(options) or 'nothing'}: {error}.") from error
    if not isinstance(model, nn.Module):
        raise TypeError(f"model {name!r} returned a {type(model).__name__}; expected a torch.nn.Module.")
    return model


def _accepted_sizes(function: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return the options without those of ``classes`` and ``channels`` that the function does not take."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a function written in C
        return options
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return options
    names = {parameter.name for parameter in parameters}
    return {option: value for option, value in options.items() if option in names or option not in SIZES}


def _import_library(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:  # a build for another version of torch raises errors of many types
        package = name.partition(".")[0]
        raise ImportError(
            f"{package} could not be imported ({type(error).__name__}: {error}): pip install 'medbn[vision]'."
        ) from error
