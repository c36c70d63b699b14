"""The arithmetic under the estimators, in three ways: plain torch, C for CPUs, Triton for GPUs.

``reference`` computes everything, everywhere. ``fused`` computes what layers do most, fast; ``ops`` makes
differentiable functions of that, and operators for torch.compile; ``selected`` says which path it would be.
``soft`` has the gradients of soft medians.
"""

from .autograd import Fused, norm
from .dispatch import median_statistics, selected, statistics
from .reference import (
    MAD_FACTORS,
    MAD_TO_SIGMA,
    image_moments,
    lower_median,
    median_absolute_deviation,
    middle_over_images,
    mix,
    normalise,
    square_deviation,
    substitute,
    traced,
    working_dtype,
)
from .saved import Spec
from .smooth import median as soft_median

__all__ = [
    "MAD_FACTORS",
    "MAD_TO_SIGMA",
    "Fused",
    "Spec",
    "image_moments",
    "lower_median",
    "median_absolute_deviation",
    "median_statistics",
    "middle_over_images",
    "mix",
    "norm",
    "normalise",
    "selected",
    "soft_median",
    "square_deviation",
    "statistics",
    "substitute",
    "traced",
    "working_dtype",
]
