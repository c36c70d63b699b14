"""Kernels: the arithmetic of the estimators, in plain torch, in C for CPUs and in Triton for GPUs.

``reference`` and ``per_image`` compute everything, on any device. ``c`` and ``triton`` compute what layers do most,
fast; ``dispatch`` chooses between them, and ``selected`` returns its choice. ``operators`` makes operators of them for
``torch.compile``; ``smooth`` has the gradients of soft medians.
"""

from .c import instruction_sets
from .dispatch import (
    KERNELS,
    activated_backward,
    activated_forward,
    activates,
    backward,
    forward,
    median_statistics,
    selected,
    statistics,
)
from .operators import norm_operator
from .per_image import (
    finite_images,
    image_moments,
    medians_of_moments,
    medians_over_images,
    middle_over_images,
    view_per_image,
)
from .reference import (
    MAD_FACTORS,
    MAD_TO_SIGMA,
    lower_median,
    median_absolute_deviation,
    mix,
    normalise,
    square_deviation,
    substitute,
    view_per_channel,
    working_dtype,
)
from .saved import Activation, Saved, Spec
from .smooth import median as soft_median
from .tracing import traced

__all__ = [
    "KERNELS",
    "MAD_FACTORS",
    "MAD_TO_SIGMA",
    "Activation",
    "Saved",
    "Spec",
    "activated_backward",
    "activated_forward",
    "activates",
    "backward",
    "finite_images",
    "forward",
    "image_moments",
    "instruction_sets",
    "lower_median",
    "median_absolute_deviation",
    "median_statistics",
    "medians_of_moments",
    "medians_over_images",
    "middle_over_images",
    "mix",
    "norm_operator",
    "normalise",
    "selected",
    "soft_median",
    "square_deviation",
    "statistics",
    "substitute",
    "traced",
    "view_per_channel",
    "view_per_image",
    "working_dtype",
]
