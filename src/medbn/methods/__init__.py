"""Test-time adaptation methods: one file each, found automatically.

``adapt`` wraps a model in one of them. ``register`` makes a subclass of Adapter or Learner of your own available by
name; ``docs/extending.md`` has a complete example.
"""

import importlib
import pkgutil

from ._adapt import adapt
from ._affine import affine_layers, has_batch_norm
from ._call import Inputs, Predictions, extract_logits, mean_over, predict_logits
from ._changes import image_features
from ._registry import PRESETS, available, get, options, register, unregister
from ._stages import group_stages
from ._state_file import StateInfo, state_info
from ._surrogate import Surrogate
from ._to_batchnorm import to_batchnorm
from .base import Adapter
from .learner import Learner

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")

__all__ = [
    "PRESETS",
    "Adapter",
    "Inputs",
    "Learner",
    "Predictions",
    "StateInfo",
    "Surrogate",
    "adapt",
    "affine_layers",
    "available",
    "extract_logits",
    "get",
    "group_stages",
    "has_batch_norm",
    "image_features",
    "mean_over",
    "options",
    "predict_logits",
    "register",
    "state_info",
    "to_batchnorm",
    "unregister",
]
