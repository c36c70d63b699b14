"""Confusion matrices of segmentation, and the numbers that follow from them: IoU per class, mean IoU, pixel accuracy.

A confusion matrix counts pixels: its rows are labels, its columns predictions. Matrices of several batches are summed
before anything is computed from them: an average of the mean IoU of batches depends on how images are cut into batches.

>>> counts = confusion_matrix(torch.tensor([[0, 0, 1, 1]]), torch.tensor([[0, 0, 0, 1]]), classes=3)
>>> counts.tolist()
[[2, 1, 0], [0, 1, 0], [0, 0, 0]]
>>> mean_iou(counts), pixel_accuracy(counts)
(0.5833333333333333, 0.75)
"""

from __future__ import annotations

import torch
from torch import Tensor

IGNORE = 255
"""The label of pixels that do not count, as in Cityscapes."""


def confusion_matrix(predicted: Tensor, labels: Tensor, classes: int, ignore: int | None = IGNORE) -> Tensor:
    """Return how many pixels of each class are predicted as each class, int64 ``(classes, classes)``.

    Args:
        predicted: the predicted classes, in any shape.
        labels: the true classes, in the same shape.
        classes: the number of classes of the model.
        ignore: the label of pixels that do not count; None if all of them do.
    """
    if predicted.shape != labels.shape:
        raise ValueError(f"predictions {tuple(predicted.shape)} do not fit labels {tuple(labels.shape)}.")
    predicted, labels = predicted.flatten().long(), labels.flatten().long()
    if ignore is not None:
        counted = labels != ignore
        predicted, labels = predicted[counted], labels[counted]
    for name, values in (("predictions", predicted), ("labels", labels)):
        if len(values) and not 0 <= int(values.min()) <= int(values.max()) < classes:
            raise ValueError(f"{name} must be from 0 to {classes - 1}, got {int(values.min())} to {int(values.max())}.")
    return torch.bincount(labels * classes + predicted, minlength=classes**2).view(classes, classes)


def iou_per_class(counts: Tensor) -> Tensor:
    """Return the intersection over union of each class, float64; NaN for classes that no label has.

    Args:
        counts: a confusion matrix, or several of them ``(..., classes, classes)``.
    """
    counts = counts.double()
    true, right = counts.sum(-1), counts.diagonal(dim1=-2, dim2=-1)
    union = true + counts.sum(-2) - right
    return torch.where(true > 0, right / union, torch.nan)


def mean_iou(counts: Tensor) -> float:
    """Return the mean IoU of the classes that occur in the labels; NaN if there are none.

    A prediction of another class is an error: it is missing from its true class. Such a class has no IoU of its own,
    since the mean would otherwise depend on how many classes the model happens to know.
    """
    return iou_per_class(counts).nanmean().item()


def pixel_accuracy(counts: Tensor) -> float:
    """Return the share of pixels that are predicted correctly; NaN if there are none."""
    counts = counts.double()
    return (counts.diagonal().sum() / counts.sum()).item()
