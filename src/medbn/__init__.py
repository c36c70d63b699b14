"""Safe test-time adaptation: batch normalisation that a few crafted images cannot hijack.

import medbn

    model = medbn.convert(model, estimator="median")   # every BatchNorm is now MedBN; same parameters, same keys
    tta = medbn.adapt(model, method="tent")            # a copy of it that adapts while it serves
    logits = tta(images)                               # predicts and adapts
"""

from . import attacks, estimators, functional, medians, methods, policies
from ._version import __version__
from .convert import convert, register_tail, revert
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
from .methods import adapt

__all__ = [
    "MedBatchNorm1d",
    "MedBatchNorm2d",
    "MedBatchNorm3d",
    "RobustBatchNorm",
    "RobustBatchNorm1d",
    "RobustBatchNorm2d",
    "RobustBatchNorm3d",
    "__version__",
    "adapt",
    "attacks",
    "backward_through",
    "convert",
    "estimators",
    "functional",
    "medians",
    "methods",
    "observe",
    "policies",
    "register_tail",
    "revert",
]
