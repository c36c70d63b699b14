"""Models by name, which take images in [0, 1]: the paper's architectures, and those of other libraries.

Every file of this folder is imported, so a new file adds a model with one function under ``@register("name")``.
"""

import importlib as _importlib
import pkgutil as _pkgutil

from .external import LIBRARIES
from .fetch import FOLDER, WEIGHTS, Weights, fetch
from .input_normalisation import InputNormalisation, NormalisedModel
from .registry import available, get, get_function, register, unregister
from .weights import fingerprint, load, metadata, save

for _file in _pkgutil.iter_modules(__path__):
    _importlib.import_module(f"{__name__}.{_file.name}")

__all__ = [
    "FOLDER",
    "LIBRARIES",
    "WEIGHTS",
    "InputNormalisation",
    "NormalisedModel",
    "Weights",
    "available",
    "fetch",
    "fingerprint",
    "get",
    "get_function",
    "load",
    "metadata",
    "register",
    "save",
    "unregister",
]
