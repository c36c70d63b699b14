"""Train a segmentation model: SGD with a polynomial learning rate on random crops, as DeepLabv3+ was trained."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..confusion import confusion_matrix, mean_iou
from ..data import IGNORE, SegmentationDataset
from .checkpoint import describe_model, load_checkpoint, save_checkpoint
from .crops import Crops
from .pace import Pace


@dataclass(frozen=True)
class SegmentationPlan:
    """The hyperparameters of a training run. The defaults are for Cityscapes at 512 × 256 and ImageNet weights."""

    epochs: int = 60
    minutes: float | None = None
    """Instead of a number of epochs: as many as fit in these minutes, with a learning rate that ends with them."""
    lr: float = 0.1
    """The learning rate of the first step."""
    backbone_factor: float = 1.0
    """The learning rate of the parameters of ``model.backbone``, relative to ``lr``; 0.1 suits pretrained weights."""
    power: float = 0.9
    """The learning rate is ``lr · (1 − steps done / all steps)`` to this power; 0.9 in DeepLab's papers."""
    batch_size: int = 16
    crop: tuple[int, int] | None = None
    """Height and width of the crops; None for the size of the images."""
    scale: tuple[float, float] = (0.5, 2.0)
    """The smallest and the largest factor by which images are scaled."""
    momentum: float = 0.9
    weight_decay: float = 1e-4
    seed: int = 0
    validate_every: int = 5
    """In every so many epochs, and in the last, the mean IoU on the validation images is measured."""

    def __post_init__(self) -> None:
        for name in ("epochs", "minutes", "lr", "backbone_factor", "batch_size", "validate_every"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, got {value}.")
        if self.batch_size < 2:
            raise ValueError("batch_size must be at least 2: BatchNorm cannot be trained on one image.")


@dataclass(frozen=True)
class SegmentationEpoch:
    """The results of one epoch."""

    number: int
    epochs: int
    """The number of epochs of the run; as far as it is known where the plan is for minutes."""
    loss: float
    mean_iou: float | None
    """The mean IoU on the validation images; None in epochs in which it is not measured."""
    seconds: float


def train_segmentation(
    model: nn.Module,
    dataset: SegmentationDataset,
    plan: SegmentationPlan | None = None,
    *,
    validation: SegmentationDataset | None = None,
    device: str | torch.device | None = None,
    checkpoint: str | Path | None = None,
    report: Callable[[SegmentationEpoch], object] | None = None,
) -> SegmentationEpoch:
    """Train a model in place, and return the last epoch's results.

    On a CPU, the same seed gives the same bits on the same machine, unless the plan is for minutes. On a GPU, forward
    passes use bfloat16, and cuDNN chooses the fastest convolutions.

    Args:
        model: a model whose logits are ``(B, classes, H, W)``; afterwards in eval mode, and on ``device``.
        dataset: the training images.
        plan: the hyperparameters.
        validation: images to measure the mean IoU on.
        device: by default a GPU if there is one.
        checkpoint: a file for the state after every epoch, from which a stopped run is continued. A checkpoint of
            another plan, model or dataset is refused.
        report: called after every epoch.
    """
    plan = plan or SegmentationPlan()
    if len(dataset) < plan.batch_size:
        raise ValueError(f"{dataset.name} has {len(dataset)} images, fewer than batch_size={plan.batch_size}.")
    cudnn = torch.backends.cudnn.flags(enabled=True, benchmark=True)  # without ``enabled``, cuDNN would be off
    with torch.random.fork_rng(range(torch.cuda.device_count())), cudnn:
        torch.manual_seed(plan.seed)  # for random numbers that the model itself draws, as dropout does
        return _train(model, dataset, plan, validation, device, checkpoint, report)


def _train(
    model: nn.Module,
    dataset: SegmentationDataset,
    plan: SegmentationPlan,
    validation: SegmentationDataset | None,
    device: str | torch.device | None,
    checkpoint: str | Path | None,
    report: Callable[[SegmentationEpoch], object] | None,
) -> SegmentationEpoch:
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    model = model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    steps = len(dataset) // plan.batch_size
    optimizer = _make_optimizer(model, plan)
    pace = Pace(plan.epochs, steps, plan.minutes)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: max(0.0, 1.0 - pace.progress(done)) ** plan.power
    )
    generator = torch.Generator().manual_seed(plan.seed)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule, "pace": pace}
    key = {**asdict(plan), "data": dataset.fingerprint, "model": describe_model(model)}
    start = load_checkpoint(Path(checkpoint), parts, generator, key) if checkpoint else 0
    crops = Crops(dataset, plan.crop or dataset.size, plan.scale, device)
    last: SegmentationEpoch | None = None
    number, validation_seconds, saving_seconds = start, 0.0, 0.0
    crops.load()
    while number < pace.epochs:
        number += 1
        began = time.monotonic()
        model.train()
        total_loss = torch.zeros((), device=device)
        for images, labels in crops.batches(plan.batch_size, generator):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                logits = model(images)
            loss = pixel_cross_entropy(logits, labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            total_loss += loss.detach()
        if not torch.isfinite(total_loss):
            raise ValueError(f"the loss is no longer finite in epoch {number}; try a smaller lr than {plan.lr}.")
        trained = time.monotonic()
        other = validation_seconds / plan.validate_every + saving_seconds
        pace.fit(number, trained - began + other, validation_seconds)
        measure = number == pace.epochs or number % plan.validate_every == 0
        iou = _measure_iou(model, validation, device) if measure else None
        if iou is not None:
            validation_seconds = time.monotonic() - trained
        last = SegmentationEpoch(number, pace.epochs, total_loss.item() / steps, iou, time.monotonic() - began)
        if checkpoint:
            saving = time.monotonic()
            save_checkpoint(Path(checkpoint), parts, generator, key, number)
            saving_seconds = time.monotonic() - saving
        if report:
            report(last)
    model.eval()
    if last is None:  # the checkpoint holds all epochs
        last = SegmentationEpoch(number, number, float("nan"), _measure_iou(model, validation, device), 0.0)
    return last


def pixel_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of the pixels that count; 0 if there are none.

    Args:
        logits: ``(B, classes, H, W)``.
        labels: ``(B, H, W)``, with ``IGNORE`` for pixels that do not count.
    """
    if logits.dim() != 4 or labels.shape != (len(logits), *logits.shape[2:]):
        raise ValueError(
            f"expected logits (B, classes, H, W) for labels {tuple(labels.shape)}, got {tuple(logits.shape)}: train a"
            " model with an output for every pixel, such as deeplabv3plus-resnet50."
        )
    # Not summed by torch's own kernel, whose order of summation on a GPU changes from run to run.
    each = F.cross_entropy(logits.float(), labels, ignore_index=IGNORE, reduction="none")
    return each.sum() / (labels != IGNORE).sum().clamp(min=1)


def measure_confusion(
    model: nn.Module, dataset: SegmentationDataset, device: str | torch.device = "cpu", size: int = 16
) -> Tensor:
    """Return the confusion matrix of a model's predictions; see ``medbn.confusion``.

    Args:
        model: the model, on ``device``; it is left in eval mode.
        dataset: the images.
        device: where to compute.
        size: images per batch.
    """
    model.eval()
    classes = len(dataset.classes)
    total = torch.zeros(classes, classes, dtype=torch.int64)
    with torch.no_grad():
        for images, labels in dataset.batches(size, device=device):
            images = images.contiguous(memory_format=torch.channels_last)
            total += confusion_matrix(model(images).argmax(1), labels, classes).cpu()
    return total


def _measure_iou(model: nn.Module, dataset: SegmentationDataset | None, device: torch.device) -> float | None:
    return None if dataset is None else mean_iou(measure_confusion(model, dataset, device))


def _make_optimizer(model: nn.Module, plan: SegmentationPlan) -> torch.optim.SGD:
    groups: list[dict[str, object]] = []
    for inside in (True, False):
        chosen = [p for name, p in model.named_parameters() if name.startswith("backbone.") == inside]
        if chosen:
            groups.append({"params": chosen, "lr": plan.lr * (plan.backbone_factor if inside else 1.0)})
    return torch.optim.SGD(groups, plan.lr, momentum=plan.momentum, weight_decay=plan.weight_decay, nesterov=True)
