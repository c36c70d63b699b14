"""Safe test-time adaptation: batch normalisation that a few crafted images cannot hijack.

One line makes a model robust, one line makes it adapt:

    model = medbn.convert(model, estimator="median")   # every BatchNorm is now MedBN; same parameters, same keys
    tta = medbn.adapt(model, method="tent")            # a copy of it that adapts while it serves
    logits = tta(images)                               # predicts and adapts
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import (
    attacks,
    distributed,
    estimators,
    functional,
    gradients,
    hooks,
    kernels,
    medians,
    methods,
    monitor,
    policies,
)
from ._version import __version__
from .convert import convert, register_tail, revert
from .fusion import fused_layers
from .hooks import backward_through, observe
from .layers import (
    MedBatchNorm1d,
    MedBatchNorm2d,
    MedBatchNorm3d,
    RobustBatchNorm,
    RobustBatchNorm1d,
    RobustBatchNorm2d,
    RobustBatchNorm3d,
)
from .methods import adapt, to_batchnorm
from .monitor import Monitor

if TYPE_CHECKING:
    from . import analysis, bench, data, models, report, training

__all__ = [
    "MedBatchNorm1d",
    "MedBatchNorm2d",
    "MedBatchNorm3d",
    "Monitor",
    "RobustBatchNorm",
    "RobustBatchNorm1d",
    "RobustBatchNorm2d",
    "RobustBatchNorm3d",
    "__version__",
    "adapt",
    "analysis",
    "attacks",
    "backward_through",
    "bench",
    "convert",
    "data",
    "distributed",
    "estimators",
    "functional",
    "fused_layers",
    "gradients",
    "hooks",
    "kernels",
    "medians",
    "methods",
    "models",
    "monitor",
    "observe",
    "policies",
    "register_tail",
    "report",
    "revert",
    "to_batchnorm",
    "training",
]


def __getattr__(name: str) -> Any:
    # Imported on first use: they take long to import, and some need optional packages.
    if name in ("analysis", "bench", "data", "models", "report", "training"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
