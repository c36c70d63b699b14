"""The architectures of the paper, by name, on images in [0, 1]; and those of others.

A file of this folder adds a model with one function under ``@register("name")``.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from .._errors import unknown_name
from .external import LIBRARIES, from_function, from_library
from .normalise import Normalise, Normalised
from .registry import register, registry
from .weights import fingerprint, load, metadata, save

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable  # at run time from Python 3.11 on

__all__ = [
    "LIBRARIES",
    "Normalise",
    "Normalised",
    "available",
    "fingerprint",
    "get",
    "load",
    "metadata",
    "register",
    "save",
]

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")

_SHIPPED = "-digits.safetensors"


def available() -> list[str]:
    """The names of the models that are here.

    >>> available()
    ['resnet-small', 'resnet26', 'resnext29', 'wide-resnet-28-10']
    """
    return sorted(registry)


def get(
    name: str,
    *,
    classes: int | None = None,
    channels: int | None = None,
    weights: str | Path | None = None,
    **options: Any,
) -> nn.Module:
    """A model by its name, in eval mode, on images in [0, 1].

    Args:
        name: one of ``available()``; ``"torchvision:resnet50"`` or ``"timm:resnet50"``, any model of those libraries,
            with its normalisation in front; or ``"module:function"``, a function of your own that returns a model.
        classes: the number of logits. None leaves it to the model: 10 here, 1000 in the libraries.
        channels: of the images. None leaves it to the model: 3.
        weights: a file, see ``load``; ``"shipped"``, those for digits that come with this package; ``"default"``, the
            library's own. None leaves the weights random.
        options: what the model takes besides, such as ``mean=`` and ``std=``, or what your function takes.

    >>> model = get("resnet-small", channels=1)
    >>> sum(parameter.numel() for parameter in model.parameters())
    77754
    """
    if not isinstance(name, str):
        raise unknown_name("model", name, available())
    for option, value in (("classes", classes), ("channels", channels)):
        if value is not None:
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{option}={value!r} was given; a whole number from 1 is expected.")
            options[option] = value
    package, _, inner = name.partition(":")
    model: nn.Module
    if weights == "shipped":
        with resources.as_file(_shipped(name)) as path:
            return get(name, weights=path, **options)
    if name in registry and weights is not None and Path(weights).suffix == ".safetensors":
        options = {**_built(Path(weights)), **options}
    if weights == "default" and package not in LIBRARIES:
        raise ValueError(
            f"weights='default' is for torchvision: and timm: models; give a file of weights for {name!r}."
        )
    if name in registry:
        factory = registry[name]
        known = inspect.signature(factory).parameters
        for option in options:
            if option not in known:
                raise unknown_name(f"option of {name}", option, known)
        model = factory(**options)
    elif not inner:
        raise unknown_name("model", name, available())
    elif package in LIBRARIES:
        model = from_library(package, inner, weights == "default", options)
    else:
        model = from_function(name, options)
    if weights is not None and weights != "default":
        load(model, weights)
    return model.eval()


def _built(path: Path) -> dict[str, int]:
    """How the model was built that ``medbn train`` saved."""
    noted = metadata(path)
    return {name: int(noted[name]) for name in ("classes", "channels") if name in noted}


def _folder() -> Traversable:
    return resources.files(__name__) / "weights"


def _shipped(name: str) -> Traversable:
    folder = _folder()
    files = {file.name: file for file in folder.iterdir()} if folder.is_dir() else {}
    if name + _SHIPPED not in files:
        there = sorted(file.removesuffix(_SHIPPED) for file in files if file.endswith(_SHIPPED))
        raise ValueError(
            f"no weights for model {name!r} are shipped; there are some for: {', '.join(there) or 'none'}."
            " Give a file of weights instead."
        )
    return files[name + _SHIPPED]
