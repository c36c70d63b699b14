"""Train source models: ``train`` for a class per image, ``train_segmentation`` for a class per pixel.

Both continue stopped runs from a checkpoint, to the same bits.
"""

from .augmentation import augment, erase
from .classification import accuracy, train
from .plan import PRECISIONS, Epoch, Plan
from .schedules import SCHEDULES
from .segmentation import (
    SegmentationEpoch,
    SegmentationPlan,
    measure_confusion,
    pixel_cross_entropy,
    train_segmentation,
)

__all__ = [
    "PRECISIONS",
    "SCHEDULES",
    "Epoch",
    "Plan",
    "SegmentationEpoch",
    "SegmentationPlan",
    "accuracy",
    "augment",
    "erase",
    "measure_confusion",
    "pixel_cross_entropy",
    "train",
    "train_segmentation",
]
