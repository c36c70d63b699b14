"""Models of others by name: ``torchvision:resnet50``, ``timm:resnet50``, or any ``module:function`` of the user's."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from torch import nn

from .normalise import IMAGENET_MEAN, IMAGENET_STD, Normalised

LIBRARIES = ("torchvision", "timm")


def from_library(library: str, name: str, pretrained: bool, options: dict[str, Any]) -> Normalised:
    """A model of torchvision or timm, on images in [0, 1]."""
    options = dict(options)
    mean, std = options.pop("mean", None), options.pop("std", None)
    classes, channels = options.pop("classes", None), options.pop("channels", 3)
    if classes is not None:
        options["num_classes"] = classes
    constants: Mapping[str, Any] = {}
    if library == "torchvision":
        if channels != 3:
            raise ValueError(f"channels={channels} was given for 'torchvision:{name}', whose models take 3.")
        package = _library("torchvision.models")
        model = package.get_model(name, weights="DEFAULT" if pretrained else None, **options)
    else:
        if channels != 3:
            options["in_chans"] = channels
        model = _library("timm").create_model(name, pretrained=pretrained, **options)
        cfg = getattr(model, "pretrained_cfg", None)
        constants = cfg if isinstance(cfg, Mapping) else {}
        trained = constants.get("num_classes")
        if pretrained and classes is not None and trained not in (None, classes):
            raise ValueError(
                f"classes={classes} was given for the default weights of 'timm:{name}', which know {trained}; timm"
                " would put an untrained classifier on top. Leave classes= away, or load weights of your own."
            )
        if channels != 3:
            constants = {}  # they are for three
    if mean is None:
        mean = constants.get("mean") or (IMAGENET_MEAN if channels == 3 else sum(IMAGENET_MEAN) / 3)
    if std is None:
        std = constants.get("std") or (IMAGENET_STD if channels == 3 else sum(IMAGENET_STD) / 3)
    return Normalised(model, mean, std, channels)


def from_function(name: str, options: dict[str, Any]) -> nn.Module:
    """What ``module:function`` returns for the options."""
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, and something that it imports is not
        raise ValueError(
            f"model {name!r}: there is no module {error.name!r}; 'module:function' needs a module that Python can"
            " import from here (sys.path)."
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ValueError(f"model {name!r}: module {module_name!r} has no function {function_name!r}.")
    try:
        model = function(**options)
    except TypeError as error:
        raise ValueError(f"model {name!r}, called with {', '.join(options) or 'nothing'}: {error}.") from error
    if not isinstance(model, nn.Module):
        raise TypeError(f"model {name!r} returned a {type(model).__name__}; a torch.nn.Module is expected.")
    return model


def _library(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:  # builds for another torch fail in ways of their own
        package = name.partition(".")[0]
        raise ImportError(
            f"{package} could not be imported ({type(error).__name__}: {error}): pip install 'medbn[vision]'."
        ) from error
