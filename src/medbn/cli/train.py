"""``medbn train``: train a source model."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._version import __version__
from ._arguments import (
    UNFINISHED,
    add_device,
    add_root,
    choose_device,
    image_size,
    natural_int,
    non_negative_float,
    positive_float,
    positive_int,
)
from ._completion import complete, dataset_names, model_names
from ._terminal import show_progress

if TYPE_CHECKING:
    from torch import nn

SUMMARY = "train a source model"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        "Train a model with SGD: a classifier with a one-cycle learning rate, or a segmentation model with a\n"
        "polynomial one, on random crops. Run the same command again to continue a run that was stopped: a checkpoint\n"
        "is kept beside the output."
    )
    parser.epilog = (
        "examples:\n  medbn train resnet26 --data cifar10\n"
        "  medbn train wide-resnet-28-10 --data cifar10 --ema 0.999 --minutes 9\n"
        "  medbn train deeplabv3plus-resnet50 --data cityscapes --size 256x512 --backbone resnet50-imagenet.safetensors"
    )
    complete(parser.add_argument("model", metavar="MODEL", help="a name of `medbn models`"), model_names)
    data = parser.add_argument(
        "--data",
        required=True,
        metavar="NAME",
        help="a dataset of `medbn data list`, or a folder: FOLDER/CLASS/IMAGE, or FOLDER/images and FOLDER/labels",
    )
    complete(data, dataset_names)
    parser.add_argument("--out", metavar="FILE", help="file for the weights (default: MODEL-DATA.safetensors)")
    parser.add_argument("--epochs", type=int, help="default: 60")
    parser.add_argument("--lr", type=float, help="the highest learning rate (default: 0.1)")
    parser.add_argument(
        "--batch-size",
        type=int,
        help="default: 500, or 50 for fewer than 20,000 images; 16 for segmentation",
    )
    parser.add_argument("--weight-decay", type=non_negative_float, help="default: 0.0005; 0.0001 for segmentation")
    parser.add_argument(
        "--seed", type=natural_int, default=0, help="seed of weights, order and augmentation (default: 0)"
    )
    parser.add_argument("--minutes", type=positive_float, help="stop after the epoch in which these are over")
    single = parser.add_argument_group("classification")
    single.add_argument("--schedule", metavar="NAME", help="of the learning rate: one-cycle (default) or cosine")
    single.add_argument("--label-smoothing", type=non_negative_float, metavar="S", help="default: 0; 0.1 is common")
    single.add_argument(
        "--ema",
        type=non_negative_float,
        metavar="DECAY",
        help="average the weights with this decay per step, such as 0.999 (default: no average)",
    )
    single.add_argument(
        "--erase", type=natural_int, metavar="PX", help="erase a square of this side from every image (default: none)"
    )
    single.add_argument(
        "--precision", metavar="NAME", help="of forward passes: auto (default: bfloat16 on a GPU), float32 or bfloat16"
    )
    single.add_argument(
        "--no-channels-last", dest="channels_last", action="store_false", default=None, help="keep the usual layout"
    )
    dense = parser.add_argument_group("segmentation")
    dense.add_argument(
        "--backbone", metavar="FILE", help="weights of the model's ResNet to start from; they learn at a tenth of --lr"
    )
    dense.add_argument("--size", type=image_size, metavar="HEIGHTxWIDTH", help="scale all images to this size first")
    dense.add_argument("--crop", type=image_size, metavar="HEIGHTxWIDTH", help="of crops (default: the images' size)")
    dense.add_argument(
        "--scale",
        type=positive_float,
        nargs=2,
        metavar=("LEAST", "MOST"),
        help="how images are scaled at random (default: 0.5 2)",
    )
    dense.add_argument(
        "--within",
        type=positive_float,
        metavar="MINUTES",
        help="train for as many epochs as fit in these minutes, with a learning rate that falls to 0 within them",
    )
    dense.add_argument(
        "--validate-every",
        type=positive_int,
        metavar="EPOCHS",
        help="how often the mean IoU is measured (default: 5); it always is at the end",
    )
    add_device(parser)
    add_root(parser)
    parser.add_argument(
        "--no-checkpoint",
        dest="keep_checkpoint",
        action="store_false",
        help="keep no checkpoint: epochs are faster, and a run that is stopped starts again",
    )
    parser.add_argument("--fresh", action="store_true", help="start again: delete the checkpoint of a stopped run")
    parser.add_argument("--quiet", action="store_true", help="print the last line alone")


SEGMENTATION = ("backbone", "size", "crop", "scale", "within", "validate_every")
"""The options that only segmentation has."""
CLASSIFICATION = ("schedule", "label_smoothing", "ema", "erase", "precision", "channels_last")
"""The options that only classification has."""


class _TimeOverError(Exception):
    """Raised after an epoch when the minutes of the command are over; the checkpoint has been written."""


def run(options: argparse.Namespace) -> int | None:
    """Train a model and save its weights."""
    from .. import data, models

    segmentation = data.task_of(options.data) == "segmentation"
    labels = "pixel" if segmentation else "image"
    for name in CLASSIFICATION if segmentation else SEGMENTATION:
        if getattr(options, name) is not None:
            flag = "no-channels-last" if name == "channels_last" else name.replace("_", "-")
            task = "classification" if segmentation else "segmentation"
            raise ValueError(f"--{flag} is for {task} datasets; {options.data!r} has a class per {labels}.")
    label = Path(options.data).name or "data"
    out = Path(options.out or f"{options.model.replace(':', '-')}-{label}.safetensors")
    if out.suffix != ".safetensors":
        raise ValueError(f"weights are saved as safetensors: give a name that ends in .safetensors, not {str(out)!r}.")
    checkpoint = out.with_name(f".{out.name}.checkpoint")
    if options.fresh:
        checkpoint.unlink(missing_ok=True)
    if out.is_dir() or checkpoint.is_dir():
        raise ValueError(f"{out} is a folder; give a file.")
    if options.minutes and not options.keep_checkpoint:
        raise ValueError("--minutes stops a run that a checkpoint continues; leave --no-checkpoint out.")
    device = choose_device(options.device)
    began = time.monotonic()
    train = _train_segmentation if segmentation else _train_classification
    try:
        model, facts, result = train(options, device, checkpoint if options.keep_checkpoint else None)
    except _TimeOverError as stopped:
        print(f"{stopped}; the same command continues", file=sys.stderr)
        return UNFINISHED
    models.save(model.cpu(), out, model=options.model, **facts, seed=options.seed, medbn=__version__)
    checkpoint.unlink(missing_ok=True)
    print(f"{out}: {facts['epochs']} epochs in {time.monotonic() - began:.0f} s on {device}{result}")
    return 0


def _stop_in_time(options: argparse.Namespace, began: float, number: int, epochs: int) -> None:
    """Raise ``_TimeOverError`` after an epoch that is not the last, if the minutes are over."""
    if options.minutes and number < epochs and time.monotonic() - began > 60 * options.minutes:
        raise _TimeOverError(f"{number} of {epochs} epochs are done")


Trained = tuple["nn.Module", dict[str, Any], str]
"""A trained model, what its file says about it, and the result in words."""


def _train_classification(options: argparse.Namespace, device: str, checkpoint: Path | None) -> Trained:
    from .. import data, training

    began = time.monotonic()
    values = _given_options(options, "epochs", "lr", "batch_size", "weight_decay", *CLASSIFICATION)
    plan = training.Plan(**values, seed=options.seed)
    images = data.load(options.data, "train", root=options.root)
    test = data.load(options.data, "test", root=options.root) if options.data in data.available() else None
    model = _make_model(options, checkpoint, classes=len(images.classes), channels=images.shape[0])
    with show_progress(f"{options.model} on {images.name}", quiet=options.quiet) as bar:

        def report(epoch: training.Epoch) -> None:
            tested = "" if epoch.test_accuracy is None else f", test {epoch.test_accuracy:.1%}"
            note = f"epoch {epoch.number}: loss {epoch.loss:.3f}, accuracy {epoch.accuracy:.1%}{tested}"
            bar.update(epoch.number, epoch.epochs, note)
            _stop_in_time(options, began, epoch.number, epoch.epochs)

        last = training.train(model, images, plan, test=test, device=device, checkpoint=checkpoint, report=report)
    facts: dict[str, Any] = {"data": images.name, "classes": len(images.classes), "channels": images.shape[0]}
    facts |= {"epochs": plan.epochs, "command": _command(options)}
    if last.test_accuracy is None:
        return model, facts, ""
    facts["accuracy"] = f"{last.test_accuracy:.4f}"
    return model, facts, f", {last.test_accuracy:.1%} of the test images correct"


def _train_segmentation(options: argparse.Namespace, device: str, checkpoint: Path | None) -> Trained:
    from .. import data, training

    began = time.monotonic()
    if options.epochs is not None and options.within is not None:
        raise ValueError("--epochs and --within both say how long to train; give one of them.")
    values = _given_options(options, "epochs", "lr", "batch_size", "weight_decay", "crop", "validate_every")
    values |= {} if options.within is None else {"minutes": options.within}
    if options.scale:
        values["scale"] = tuple(options.scale)
    if options.backbone:
        values["backbone_factor"] = 0.1
    plan = training.SegmentationPlan(**values, seed=options.seed)
    size = {} if options.size is None else {"size": options.size}
    images = data.load_segmentation(options.data, "train", root=options.root, **size)
    validation = data.load_segmentation(options.data, "val", root=options.root, **size)
    backbone = {"backbone_weights": options.backbone} if options.backbone else {}
    model = _make_model(options, checkpoint, classes=len(images.classes), channels=3, **backbone)
    with show_progress(f"{options.model} on {images.name}", quiet=options.quiet) as bar:

        def report(epoch: training.SegmentationEpoch) -> None:
            measured = "" if epoch.mean_iou is None else f", mean IoU {epoch.mean_iou:.1%}"
            bar.update(epoch.number, epoch.epochs, f"epoch {epoch.number}: loss {epoch.loss:.3f}{measured}")
            _stop_in_time(options, began, epoch.number, epoch.epochs)

        last = training.train_segmentation(
            model, images, plan, validation=validation, device=device, checkpoint=checkpoint, report=report
        )
    height, width = images.size
    facts = {
        "data": images.name,
        "classes": len(images.classes),
        "class_names": ", ".join(images.classes),
        "channels": 3,
        "size": f"{height}x{width}",
        "epochs": last.number,
        "mean_iou": f"{last.mean_iou:.4f}",
        "command": _command(options),
    }
    return model, facts, f", {last.mean_iou:.1%} mean IoU on {len(validation)} validation images"


def _given_options(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return those options that were given; a plan has the defaults of the others."""
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def _make_model(options: argparse.Namespace, checkpoint: Path | None, **sizes: Any) -> nn.Module:
    import torch

    from .. import models

    torch.manual_seed(options.seed)
    model = models.get(options.model, **sizes)
    if checkpoint and checkpoint.exists() and not options.quiet:
        print(f"continuing from {checkpoint}")
    return model


def _command(options: argparse.Namespace) -> str:
    """Return the command that repeats this training, without its paths and device."""
    words = ["medbn", "train", options.model, "--data", options.data]
    for name in (
        "epochs",
        "lr",
        "batch_size",
        "weight_decay",
        "seed",
        *CLASSIFICATION[:-1],
        "size",
        "crop",
        "scale",
        "within",
        "backbone",
    ):
        value = getattr(options, name)
        if value in (None, 0):
            continue
        words.append(f"--{name.replace('_', '-')}")
        if name in ("size", "crop"):
            words.append(f"{value[0]}x{value[1]}")
        elif name == "scale":
            words += [f"{each:g}" for each in value]
        else:
            words.append(Path(value).name if name == "backbone" else f"{value:g}" if name == "within" else f"{value}")
    words += ["--no-channels-last"] if options.channels_last is False else []
    return shlex.join(words)
