"""Confusion matrices and what follows from them: against counting by hand and against torchmetrics."""

from __future__ import annotations

import math

import pytest
import torch

from medbn.confusion import confusion_matrix, iou_per_class, mean_iou, pixel_accuracy


def draw(classes: int = 5, seed: int = 0, present: int | None = None):
    """Predictions of all classes, and labels of the first ``present`` ones with some that do not count."""
    g = torch.Generator().manual_seed(seed)
    predicted = torch.randint(classes, (3, 6, 7), generator=g)
    labels = torch.randint(present or classes, (3, 6, 7), generator=g)
    labels[torch.rand(labels.shape, generator=g) < 0.2] = 255
    return predicted, labels


def test_by_counting():
    predicted, labels = draw()
    counts = confusion_matrix(predicted, labels, 5)
    ious = []
    for c in range(5):
        for d in range(5):
            assert counts[c, d] == ((labels == c) & (predicted == d)).sum()
        p, t = (predicted == c) & (labels != 255), labels == c
        ious.append((p & t).sum().item() / (p | t).sum().item())
    assert iou_per_class(counts).tolist() == pytest.approx(ious)
    assert mean_iou(counts) == pytest.approx(sum(ious) / 5)
    assert pixel_accuracy(counts) == pytest.approx((predicted == labels)[labels != 255].double().mean().item())


@pytest.mark.parametrize("seed", range(3))
def test_by_torchmetrics(seed):
    """Over two updates, where a mean of the mean IoU of each would be another number."""
    classification = pytest.importorskip("torchmetrics.classification")
    jaccard = {
        average: classification.MulticlassJaccardIndex(6, average=average, ignore_index=255)
        for average in ("macro", "none")
    }
    accuracy = classification.MulticlassAccuracy(6, average="micro", ignore_index=255)
    counts = torch.zeros(6, 6, dtype=torch.long)
    for part in (draw(6, seed), draw(6, seed + 10, present=2)):
        for metric in (*jaccard.values(), accuracy):
            metric.update(*part)
        counts += confusion_matrix(*part, 6)
    assert iou_per_class(counts).tolist() == pytest.approx(jaccard["none"].compute().tolist(), rel=1e-6)
    assert mean_iou(counts) == pytest.approx(jaccard["macro"].compute().item(), rel=1e-6)
    assert pixel_accuracy(counts) == pytest.approx(accuracy.compute().item(), rel=1e-6)


def test_classes_without_labels_have_no_iou_and_predictions_of_them_are_errors():
    labels = torch.tensor([0, 0, 0, 0, 1, 1])
    right, wrong = labels.clone(), torch.tensor([0, 0, 3, 3, 1, 1])
    assert mean_iou(confusion_matrix(right, labels, 4)) == 1.0
    counts = confusion_matrix(wrong, labels, 4)
    assert iou_per_class(counts).tolist() == pytest.approx([0.5, 1.0, math.nan, math.nan], nan_ok=True)
    assert mean_iou(counts) == 0.75  # the two pixels of class 3 count once, against class 0
    assert pixel_accuracy(counts) == pytest.approx(4 / 6)


def test_several_matrices_at_once_and_none():
    counts = torch.stack([confusion_matrix(*draw(seed=seed), 5) for seed in range(4)])
    assert torch.equal(iou_per_class(counts), torch.stack([iou_per_class(one) for one in counts]))
    assert math.isnan(mean_iou(torch.zeros(3, 3)))
    assert math.isnan(pixel_accuracy(torch.zeros(3, 3)))


@pytest.mark.parametrize(
    ("predicted", "labels", "message"),
    [
        ([0, 1], [0, 1, 1], r"\(2,\).*\(3,\)"),
        ([0, 1], [0, 3], "labels.*0 to 2"),
        ([0, 1], [0, -1], "labels.*-1"),
        ([0, 3], [0, 1], "predictions.*3"),
    ],
)
def test_what_is_out_of_range_is_named(predicted, labels, message):
    with pytest.raises(ValueError, match=message):
        confusion_matrix(torch.tensor(predicted), torch.tensor(labels), 3)


def test_bytes_and_labels_that_all_count():
    predicted, labels = torch.tensor([0, 1, 2], dtype=torch.uint8), torch.tensor([255, 1, 2], dtype=torch.uint8)
    assert confusion_matrix(predicted, labels, 3).sum() == 2
    with pytest.raises(ValueError, match="255"):
        confusion_matrix(predicted, labels, 3, ignore=None)
