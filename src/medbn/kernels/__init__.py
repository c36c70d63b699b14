"""The arithmetic under the estimators, in three ways: plain torch, C for CPUs, Triton for GPUs.

``reference`` computes everything, everywhere. ``fused`` computes what layers do most, fast, and ``selected`` says which
of them it would be.
"""

from .fused import Fused, Wanted, norm, selected
from .reference import (
    image_moments,
    lower_median,
    median_absolute_deviation,
    middle_over_images,
    normalise,
    square_deviation,
    substitute,
    traced,
    working_dtype,
)

__all__ = [
    "Fused",
    "Wanted",
    "image_moments",
    "lower_median",
    "median_absolute_deviation",
    "middle_over_images",
    "norm",
    "normalise",
    "selected",
    "square_deviation",
    "substitute",
    "traced",
    "working_dtype",
]
