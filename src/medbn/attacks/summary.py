"""Totals over a stream of attacked batches. Malicious images never count."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor

from .. import confusion
from ..confusion import IGNORE, confusion_matrix, pixel_accuracy
from .scenarios import Outcome


def mean_iou(predicted: Tensor, labels: Tensor, classes: int, ignore: int = IGNORE) -> float:
    """Return the mean intersection over union of the classes that occur in the labels.

    Predictions of other classes are errors. For several batches, sum up their matrices: see ``medbn.confusion``.

    >>> import torch
    >>> mean_iou(torch.tensor([[0, 0, 1, 1]]), torch.tensor([[0, 0, 0, 1]]), classes=3)
    0.5833333333333333
    """
    return confusion.mean_iou(confusion_matrix(predicted, labels, classes, ignore))


@dataclass
class Summary:
    """Totals over attacked batches: ``add`` one outcome at a time, or sum up a stream with ``of``."""

    targets: int = 0
    """How many attacks were targeted."""
    hits: int = 0
    """How many targets the model predicts as the target class under attack."""
    already: int = 0
    """How many targets it predicts as the target class without attack too."""
    gained: int = 0
    """Hits that are not predicted so without attack: what the attack achieved."""
    batches: int = 0
    errors: list[float] = field(default_factory=list)
    """The share of wrong predictions, of images or of pixels, on benign images in each batch, under attack."""
    errors_without: list[float] = field(default_factory=list)
    """The same share without attack."""
    confusion: Tensor | None = None
    """For dense outputs, the confusion matrix of the benign images of all batches, under attack."""
    confusion_without: Tensor | None = None
    """The same without attack."""

    @classmethod
    def of(cls, outcomes: Iterable[Outcome]) -> Summary:
        """Return the totals of a whole stream."""
        summary = cls()
        for outcome in outcomes:
            summary.add(outcome)
        return summary

    def add(self, outcome: Outcome) -> None:
        """Add one attacked batch."""
        self.batches += 1
        if outcome.objective.targeted:
            self.targets += 1
            hit, already = int(outcome.harm()), int(outcome.harm_without())
            self.hits += hit
            self.already += already
            self.gained += hit and not already
        if outcome.objective.dense:
            self._add_pixels(outcome)
            return
        labels = outcome.labels[outcome.benign]
        for logits, errors in ((outcome.attacked, self.errors), (outcome.clean, self.errors_without)):
            errors.append((logits.argmax(dim=1)[outcome.benign] != labels).float().mean().item())

    def _add_pixels(self, outcome: Outcome) -> None:
        attacked, clean = (outcome.confusion(logits) for logits in (outcome.attacked, outcome.clean))
        self.errors.append(1 - pixel_accuracy(attacked))
        self.errors_without.append(1 - pixel_accuracy(clean))
        self.confusion = attacked if self.confusion is None else self.confusion + attacked
        self.confusion_without = clean if self.confusion_without is None else self.confusion_without + clean

    @property
    def success_rate(self) -> float:
        """Return the paper's attack success rate, hits over targets; NaN without a targeted attack."""
        return self.hits / self.targets if self.targets else float("nan")

    @property
    def error(self) -> float:
        """Return the error rate on benign images under attack: averaged over batches as in the paper; of all pixels."""
        return _mean(self.errors) if self.confusion is None else 1 - pixel_accuracy(self.confusion)

    @property
    def error_without(self) -> float:
        """Return the error rate on the same images without attack."""
        return (
            _mean(self.errors_without) if self.confusion_without is None else 1 - pixel_accuracy(self.confusion_without)
        )

    @property
    def iou(self) -> float:
        """Return the mean IoU on the benign images of all batches under attack; NaN unless outputs are dense."""
        return math.nan if self.confusion is None else confusion.mean_iou(self.confusion)

    @property
    def iou_without(self) -> float:
        """Return the mean IoU on the same images without attack."""
        return math.nan if self.confusion_without is None else confusion.mean_iou(self.confusion_without)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan
