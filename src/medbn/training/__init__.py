"""Train source models: ``train`` for a class per image, ``train_segmentation`` for a class per pixel.

Both continue stopped runs from a checkpoint, to the same bits.
"""

from .classification import Epoch, Plan, accuracy, augment, train
from .segmentation import (
    SegmentationEpoch,
    SegmentationPlan,
    measure_confusion,
    pixel_cross_entropy,
    train_segmentation,
)

__all__ = [
    "Epoch",
    "Plan",
    "SegmentationEpoch",
    "SegmentationPlan",
    "accuracy",
    "augment",
    "measure_confusion",
    "pixel_cross_entropy",
    "train",
    "train_segmentation",
]
