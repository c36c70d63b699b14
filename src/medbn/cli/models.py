"""``medbn models``: list the models, get weights of some of them, and measure their accuracy."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ._arguments import add_device, add_root, choose_device, image_size, positive_int
from ._completion import complete, dataset_names, model_names, weights_names
from ._terminal import format_table, show_progress

if TYPE_CHECKING:
    from torch import nn

    from ..data import Dataset, SegmentationDataset

SUMMARY = "list the models, get weights by name, measure how accurate a model is"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the actions of the command; without one, it lists the models."""
    parser.epilog = (
        "examples:\n  medbn models\n  medbn models fetch resnet26-cifar10 --from weights\n"
        "  medbn models accuracy resnet26 --data cifar10\n"
        "  medbn models accuracy deeplabv3plus-resnet50 --data cityscapes --size 256x512"
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    actions.add_parser("list", help="list the models and the weights (the default)").set_defaults(run=list_models)
    action = actions.add_parser("fetch", help="get weights, verify them and put them into the data folder")
    complete(action.add_argument("name", metavar="NAME", help="weights that `medbn models` lists"), weights_names)
    action.add_argument(
        "--from", dest="source", metavar="SOURCE", help="a folder or an http address that has the file of weights"
    )
    add_root(action)
    action.set_defaults(run=fetch)
    _configure_accuracy(
        actions.add_parser("accuracy", help="measure how many clean images, or pixels, a model classifies correctly")
    )
    parser.set_defaults(run=list_models)


def _configure_accuracy(parser: argparse.ArgumentParser) -> None:
    complete(parser.add_argument("model", metavar="MODEL", help="a model that `medbn models` lists"), model_names)
    data = parser.add_argument(
        "--data", required=True, metavar="NAME", help="a dataset of `medbn data list`, or a path"
    )
    complete(data, dataset_names)
    parser.add_argument(
        "--weights", metavar="FILE", help="default: MODEL-DATA.safetensors in the data folder's models/"
    )
    parser.add_argument("--images", type=positive_int, metavar="N", help="the first N test images (default: all)")
    parser.add_argument("--batch-size", type=positive_int, default=50, metavar="N", help="default: 50")
    parser.add_argument("--size", type=image_size, metavar="HEIGHTxWIDTH", help="scale images for segmentation to this")
    add_device(parser)
    add_root(parser)
    parser.set_defaults(run=measure_accuracy)


def list_models(options: argparse.Namespace) -> None:
    """Print each model with its number of parameters, how to name models of other libraries, and the weights."""
    import torch

    from .. import models

    rows = []
    for name in models.available():
        with torch.device("meta"):  # only the shapes of the parameters are needed
            model = models.get(name)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        rows.append((name, f"{parameters / 1e6:.2f} M"))
    print(format_table(("model", "parameters"), rows, right=(1,)))
    libraries = " or ".join(f"{library}:NAME" for library in models.LIBRARIES)
    print(f"\nmodels of other libraries: {libraries}, such as {next(iter(models.LIBRARIES))}:resnet50")
    print("a model of your own: MODULE:FUNCTION, a function build(classes, channels) that returns an nn.Module\n")
    known = [(w.name, w.model, f"{w.size / 1e6:.0f} MB", w.accuracy) for w in models.WEIGHTS.values()]
    print(format_table(("weights", "model", "size", "correct"), known, right=(2,)))
    print("\nget them: medbn models fetch NAME")


def fetch(options: argparse.Namespace) -> None:
    """Get a file of weights, verify it and put it into the data folder."""
    from .. import models

    with show_progress(options.name, unit="bytes") as bar:
        path = models.fetch(options.name, options.root, source=options.source, progress=bar.update)
    print(f"{options.name} is in {path}, verified")


def measure_accuracy(options: argparse.Namespace) -> None:
    """Print the share of clean test images that a model classifies correctly, with its interval.

    For segmentation, print the mean IoU and the share of pixels.
    """
    from .. import data

    if data.task_of(options.data) == "segmentation":
        size = {} if options.size is None else {"size": options.size}
        _measure_pixels(options, data.load_segmentation(options.data, root=options.root, **size))
    elif options.size is not None:
        raise ValueError(f"--size is for segmentation; {options.data} has a class per image.")
    else:
        _measure_images(options, data.load(options.data, root=options.root))


def _load_model(options: argparse.Namespace, dataset: Dataset | SegmentationDataset, device: str) -> nn.Module:
    """Return the model with the weights that were asked for, or those for the dataset."""
    from .. import data, models

    folder = data.find_root(options.root) / models.FOLDER
    weights = options.weights or folder / f"{options.model}-{dataset.name}.safetensors"
    classes, channels = len(dataset.classes), dataset.shape[0]
    return models.get(options.model, classes=classes, channels=channels, weights=weights).to(device)


def _measure_pixels(options: argparse.Namespace, dataset: SegmentationDataset) -> None:
    """Print the mean IoU over the classes that occur, and the pixel accuracy, drawing images for their intervals."""
    import torch

    from .. import bench
    from ..training import measure_confusion

    device = choose_device(options.device)
    model = _load_model(options, dataset, device)
    total, matrices = min(options.images or len(dataset), len(dataset)), []
    with show_progress(f"{options.model} on {dataset.name}") as bar:
        for index in range(total):  # one by one: an interval draws them
            matrices.append(measure_confusion(model, dataset.subset([index]), device))
            bar.update(index + 1, total)
    occur = int((torch.stack(matrices).sum((0, 2)) > 0).sum())
    print(f"{total:,} test images of {dataset.name}, {occur} of {len(dataset.classes)} classes:")
    for name, of in (("mean IoU", bench.intervals.mean_iou), ("pixels correct", bench.intervals.pixel_accuracy)):
        value, low, high = bench.intervals.bootstrap_confusion(matrices, of)
        between = "" if low != low else f" ({low:.2%} to {high:.2%})"
        print(f"{name} {value:.2%}{between}")


def _measure_images(options: argparse.Namespace, dataset: Dataset) -> None:
    import torch

    from .. import bench

    device = choose_device(options.device)
    model = _load_model(options, dataset, device)
    total = min(options.images or len(dataset), len(dataset))
    correct = 0
    with torch.no_grad(), show_progress(f"{options.model} on {dataset.name}") as bar:
        for start in range(0, total, options.batch_size):
            part = range(start, min(start + options.batch_size, total))
            logits = model(dataset.read(part).to(device).float() / 255)
            correct += int((logits.argmax(1) == dataset.labels[part.start : part.stop].to(device)).sum())
            bar.update(part.stop, total)
    value, low, high = bench.intervals.wilson(correct, total)
    print(f"{correct:,} of {total:,} test images of {dataset.name}: {value:.2%} ({low:.2%} to {high:.2%})")
