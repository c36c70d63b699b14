"""Models by name: those of this folder, those of torchvision and timm, and functions of the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from .._errors import unknown_name
from .._registry import Registry
from .external import LIBRARIES, from_function, from_library
from .settings import saved_settings
from .weights import load

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable  # at run time from Python 3.11 on

_registry = Registry[Callable[..., nn.Module]]("model", forbidden=":")

unregister = _registry.unregister
register = _registry.register
"""Make ``get(name)`` call the decorated function with its options as keywords.

Among its options should be ``classes``, ``channels``, ``mean`` and ``std``, each with a default.
"""


def available() -> list[str]:
    """Return the names of the models that are registered here.

    >>> "resnet26" in available()
    True
    """
    return _registry.available()


def get_function(name: str) -> Callable[..., nn.Module] | None:
    """Return the function that is registered under a name; None for models of libraries and unregistered functions."""
    return _registry.get(name) if name in _registry else None


def get(
    name: str,
    *,
    classes: int | None = None,
    channels: int | None = None,
    weights: str | Path | None = None,
    **options: Any,
) -> nn.Module:
    """Return a model, in eval mode, that takes images in [0, 1].

    Args:
        name: one of ``available()``; ``"torchvision:resnet50"`` or ``"timm:resnet50"``, any model of those libraries,
            behind its input normalisation; or ``"module:function"``, a function of your own,
            ``function(classes, channels)``, that returns a model; either may be left out.
        classes: the number of logits. By default the model's own: 10 here, 1000 in the libraries.
        channels: of the images. By default the model's own: 3.
        weights: a file, see ``load``; ``"shipped"`` for weights that come with this package;
            ``"default"`` for the library's own. None leaves the weights random.
        options: further options of the model, such as ``mean`` and ``std``, or of your function.

    >>> model = get("resnet-small", channels=1)
    >>> sum(parameter.numel() for parameter in model.parameters())
    77754
    """
    if not isinstance(name, str):
        raise unknown_name("model", name, available())
    for option, value in (("classes", classes), ("channels", channels)):
        if value is not None:
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{option}={value!r}: expected a whole number of at least 1.")
            options[option] = value
    if weights == "shipped":
        with resources.as_file(_shipped_weights(name)) as path:
            return get(name, weights=path, **options)
    library, _, inner = name.partition(":")
    if weights == "default" and library not in LIBRARIES:
        raise ValueError(
            f"weights='default' is for torchvision: and timm: models; give a file of weights for {name!r}."
        )
    model: nn.Module
    if name in _registry or not inner:
        model = _build(name, weights, options)
    elif library in LIBRARIES:
        model = from_library(library, inner, weights == "default", options)
    else:
        model = from_function(name, options)
    if weights is not None and weights != "default":
        load(model, weights)
    return model.eval()


def _build(name: str, weights: str | Path | None, options: dict[str, Any]) -> nn.Module:
    """Call a registered function with the options, and with those that the file of weights says it was trained with."""
    function = _registry.get(name)
    parameters = inspect.signature(function).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if not takes_any:
        for option in options:
            if option not in parameters:
                raise unknown_name(f"option of {name}", option, parameters)
    if weights is not None and Path(weights).suffix == ".safetensors":
        saved = saved_settings(weights).items()
        options = {**{option: value for option, value in saved if takes_any or option in parameters}, **options}
    return function(**options)


def _weights_folder() -> Traversable:
    return resources.files(__package__ or __name__) / "weights"


def _shipped_weights(name: str) -> Traversable:
    """Return the file of the weights of a model that ship with the package; files are called ``MODEL-DATA``."""
    folder = _weights_folder()
    files = {file.name.rpartition("-")[0]: file for file in folder.iterdir()} if folder.is_dir() else {}
    if name not in files:
        raise ValueError(
            f"no weights for model {name!r} are shipped; there are some for: {', '.join(sorted(files)) or 'none'}."
            " Give a file of weights instead."
        )
    return files[name]
