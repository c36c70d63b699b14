"""The hyperparameters of training a classifier, and what is reported of each epoch."""

from __future__ import annotations

from dataclasses import dataclass

from .._errors import unknown_name
from .schedules import SCHEDULES

PRECISIONS = ("auto", "float32", "bfloat16")
"""In which forward passes are computed; "auto" is bfloat16 on a GPU and float32 elsewhere. Weights are float32."""


@dataclass(frozen=True)
class Plan:
    """The hyperparameters of a training run.

    The options that are off by default (``ema``, ``label_smoothing``, ``erase``) are in common use for wider networks.
    They have not been measured here on anything larger than digits.
    """

    epochs: int = 60
    lr: float = 0.1
    """The highest learning rate of the schedule."""
    batch_size: int | None = None
    """By default 500, or 50 for fewer than 20,000 images."""
    momentum: float = 0.9
    """Of SGD; the schedule "one-cycle" changes it along with the learning rate."""
    weight_decay: float = 5e-4
    seed: int = 0
    schedule: str = "one-cycle"
    """A name of ``SCHEDULES``."""
    label_smoothing: float = 0.0
    """How much of each label is spread evenly over all classes."""
    ema: float = 0.0
    """The decay per step of a moving average of weights and statistics that the trained model gets; 0 for none."""
    erase: int = 0
    """The side in pixels of a square that is erased from every image at random (cutout); 0 for none."""
    precision: str = "auto"
    """A name of ``PRECISIONS``."""
    channels_last: bool = True
    """Whether images and weights are stored channels last, which is faster with tensor cores."""

    def __post_init__(self) -> None:
        for name in ("epochs", "lr", "batch_size"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, got {value}.")
        for name in ("label_smoothing", "ema"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 0 and below 1, got {getattr(self, name)}.")
        if self.erase < 0:
            raise ValueError(f"erase must be at least 0, got {self.erase}.")
        if self.schedule not in SCHEDULES:
            raise unknown_name("schedule", self.schedule, SCHEDULES)
        if self.precision not in PRECISIONS:
            raise unknown_name("precision", self.precision, PRECISIONS)

    def batch_size_for(self, images: int) -> int:
        """Return the batch size for that many images."""
        return min(images, self.batch_size or (500 if images >= 20_000 else 50))

    def uses_bfloat16(self, device_type: str) -> bool:
        """Return whether forward passes on a type of device are computed in bfloat16."""
        return self.precision == "bfloat16" or (self.precision == "auto" and device_type == "cuda")


@dataclass(frozen=True)
class Epoch:
    """The results of one epoch."""

    number: int
    epochs: int
    """The number of epochs of the run."""
    loss: float
    accuracy: float
    """The accuracy on the training images, measured on each batch before its update."""
    test_accuracy: float | None
    """The accuracy on the test images; measured in every tenth epoch and the last, if there is a test set."""
    seconds: float
