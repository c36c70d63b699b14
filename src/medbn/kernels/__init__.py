"""The arithmetic under the estimators. One module per way of computing it; today the plain torch one."""

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
    "image_moments",
    "lower_median",
    "median_absolute_deviation",
    "middle_over_images",
    "normalise",
    "square_deviation",
    "substitute",
    "traced",
    "working_dtype",
]
