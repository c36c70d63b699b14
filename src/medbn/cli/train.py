"""``medbn train``: train a source model from scratch."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from .._version import __version__
from ._arguments import add_device, add_root, choose_device, natural_int, non_negative_float
from ._completion import complete, dataset_names, model_names
from ._terminal import show_progress

SUMMARY = "train a source model"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        "Train a model with SGD and a one-cycle learning rate. Run the same command again to continue a run that was"
        " stopped:\na checkpoint is kept beside the output."
    )
    parser.epilog = "example:\n  medbn train resnet26 --data cifar10"
    complete(parser.add_argument("model", metavar="MODEL", help="a name of `medbn models`"), model_names)
    data = parser.add_argument(
        "--data", required=True, metavar="NAME", help="a dataset of `medbn data list`, or a folder FOLDER/CLASS/IMAGE"
    )
    complete(data, dataset_names)
    parser.add_argument("--out", metavar="FILE", help="file for the weights (default: MODEL-DATA.safetensors)")
    parser.add_argument("--epochs", type=int, default=60, help="default: 60")
    parser.add_argument("--lr", type=float, default=0.1, help="the highest learning rate (default: 0.1)")
    parser.add_argument("--batch-size", type=int, help="default: 500, or 50 for fewer than 20,000 images")
    parser.add_argument("--weight-decay", type=non_negative_float, default=5e-4, help="default: 0.0005")
    parser.add_argument(
        "--seed", type=natural_int, default=0, help="seed of weights, order and augmentation (default: 0)"
    )
    add_device(parser)
    add_root(parser)
    parser.add_argument("--fresh", action="store_true", help="start again: delete the checkpoint of a stopped run")
    parser.add_argument("--quiet", action="store_true", help="print the last line alone")


def run(options: argparse.Namespace) -> None:
    """Train a model and save its weights."""
    import torch

    from .. import data, models, training

    models.require_safetensors()
    plan = training.Plan(
        options.epochs, options.lr, options.batch_size, weight_decay=options.weight_decay, seed=options.seed
    )
    images = data.load(options.data, "train", root=options.root)
    test = data.load(options.data, "test", root=options.root) if options.data in data.available() else None
    label = Path(options.data).name or "data"
    out = Path(options.out or f"{options.model.replace(':', '-')}-{label}.safetensors")
    if out.suffix != ".safetensors":
        raise ValueError(f"weights are saved as safetensors: give a name that ends in .safetensors, not {str(out)!r}.")
    checkpoint = out.with_name(f".{out.name}.checkpoint")
    if options.fresh:
        checkpoint.unlink(missing_ok=True)
    if out.is_dir() or checkpoint.is_dir():
        raise ValueError(f"{out} is a folder; give a file.")
    device = choose_device(options.device)
    torch.manual_seed(options.seed)
    model = models.get(options.model, classes=len(images.classes), channels=images.shape[0])
    if checkpoint.exists() and not options.quiet:
        print(f"continuing from {checkpoint}")
    began = time.monotonic()
    with show_progress(f"{options.model} on {images.name}", quiet=options.quiet) as bar:

        def report(epoch: training.Epoch) -> None:
            tested = "" if epoch.test_accuracy is None else f", test {epoch.test_accuracy:.1%}"
            note = f"epoch {epoch.number}: loss {epoch.loss:.3f}, accuracy {epoch.accuracy:.1%}{tested}"
            bar.update(epoch.number, epoch.epochs, note)

        last = training.train(model, images, plan, test=test, device=device, checkpoint=checkpoint, report=report)
    score = {} if last.test_accuracy is None else {"accuracy": f"{last.test_accuracy:.4f}"}
    models.save(
        model.cpu(),
        out,
        model=options.model,
        data=images.name,
        classes=len(images.classes),
        channels=images.shape[0],
        epochs=options.epochs,
        seed=options.seed,
        medbn=__version__,
        **score,
    )
    checkpoint.unlink(missing_ok=True)
    tested = "" if last.test_accuracy is None else f", {last.test_accuracy:.1%} of the test images correct"
    print(f"{out}: {plan.epochs} epochs in {time.monotonic() - began:.0f} s on {device}{tested}")
