"""Totals over a stream of attacked batches. Malicious images never count."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .scenarios import Outcome


def mean_iou(predicted: Tensor, labels: Tensor, classes: int, ignore: int = 255) -> float:
    """Return the mean intersection over union of the classes that occur, in labels or predictions.

    >>> mean_iou(torch.tensor([[0, 0, 1, 1]]), torch.tensor([[0, 0, 0, 1]]), classes=3)
    0.5833333333333333
    """
    predicted, labels = predicted.long(), labels.long()
    counts = labels != ignore
    cells = labels[counts] * classes + predicted[counts]
    table = torch.bincount(cells, minlength=classes**2).view(classes, classes).double()
    union = table.sum(0) + table.sum(1) - table.diag()
    return (table.diag() / union)[union > 0].mean().item()


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
    """The share of wrong predictions on benign images in each batch, under attack."""
    errors_without: list[float] = field(default_factory=list)
    """The same share without attack."""
    ious: list[float] = field(default_factory=list)
    """For dense outputs, the mean IoU on benign images in each batch, under attack."""
    ious_without: list[float] = field(default_factory=list)

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
        labels = outcome.labels[outcome.benign]
        ignore = outcome.objective.ignore
        pairs = ((outcome.attacked, self.errors, self.ious), (outcome.clean, self.errors_without, self.ious_without))
        for logits, errors, ious in pairs:
            predicted = logits.argmax(dim=1)[outcome.benign]
            wrong = predicted != labels
            errors.append((wrong if ignore is None else wrong[labels != ignore]).float().mean().item())
            if ignore is not None:
                ious.append(mean_iou(predicted, labels, logits.shape[1], ignore))

    @property
    def success_rate(self) -> float:
        """Return the paper's attack success rate, hits over targets; NaN without a targeted attack."""
        return self.hits / self.targets if self.targets else float("nan")

    @property
    def error(self) -> float:
        """Return the error rate on benign images under attack, averaged over batches as in the paper."""
        return _mean(self.errors)

    @property
    def error_without(self) -> float:
        """Return the error rate on the same images without attack."""
        return _mean(self.errors_without)

    @property
    def iou(self) -> float:
        """Return the mean IoU on benign images under attack; NaN unless outputs are dense."""
        return _mean(self.ious)

    @property
    def iou_without(self) -> float:
        """Return the mean IoU on the same images without attack."""
        return _mean(self.ious_without)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
