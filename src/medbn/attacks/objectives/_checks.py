"""What objectives share: checks of their arguments, the target class, and the share of wrong predictions."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import Objective


def wrong_share(wrong: Tensor, counted: Tensor) -> Tensor:
    """Return the share of what is counted that is wrong, or NaN if nothing is, without host synchronisation."""
    return (wrong & counted).sum() / counted.sum()


def choose_target(target_class: int | None, true: Tensor, classes: int) -> Tensor:
    """Return the target class: the one that is given, or the one after the true class."""
    if target_class is not None and not 0 <= target_class < classes:
        raise ValueError(f"target_class {target_class} is not one of the model's {classes} classes.")
    return (true + 1) % classes if target_class is None else torch.full_like(true, target_class)


def check_rank(objective: Objective, labels: Tensor) -> None:
    """Raise a ValueError unless there is one label per image, or per pixel for dense objectives."""
    if labels.dim() != (3 if objective.dense else 1):
        expected, other = (
            ("(B, H, W)", "Targeted or Indiscriminate")
            if objective.dense
            else ("(B,)", "TargetedPixel or IndiscriminateSegmentation")
        )
        raise ValueError(
            f"{type(objective).__name__} takes labels {expected}, got {tuple(labels.shape)}; use {other} for those."
        )


def check_logits(logits: Tensor, labels: Tensor) -> None:
    """Raise a ValueError unless there are logits for each label."""
    if logits.dim() != labels.dim() + 1:
        raise ValueError(f"logits {tuple(logits.shape)} do not fit labels {tuple(labels.shape)}.")


def check_target(target_class: int | None, true: Tensor, what: str) -> None:
    """Raise a ValueError if the target class is the true class already."""
    if target_class is not None and bool(true == target_class):
        raise ValueError(f"{what} is of class {target_class} already; choose another target_class.")


def check_index(index: int, benign: Tensor) -> None:
    """Raise a ValueError unless the image is in the batch and benign."""
    if not -len(benign) <= index < len(benign):
        raise ValueError(f"the target, image {index}, is not in a batch of {len(benign)}.")
    if not bool(benign[index]):
        raise ValueError(f"the target, image {index}, is malicious itself; target a benign image.")
