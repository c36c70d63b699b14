"""``medbn train``: a source model from scratch."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from . import terminal


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "train",
        help="train a source model",
        description="Train a model with SGD on one cycle. Stopped runs continue: a checkpoint lies beside the output.",
    )
    parser.add_argument("model", metavar="MODEL", help="resnet-small, resnet26, wide-resnet-28-10, resnext29, ...")
    parser.add_argument("--data", required=True, metavar="NAME", help="digits, cifar10, cifar100, or a folder's path")
    parser.add_argument("--out", metavar="FILE", help="where the weights go (default: MODEL-DATA.safetensors)")
    parser.add_argument("--epochs", type=int, default=60, help="default: 60")
    parser.add_argument("--lr", type=float, default=0.1, help="the highest learning rate (default: 0.1)")
    parser.add_argument("--batch-size", type=int, help="default: 500, or 50 for fewer than 20,000 images")
    parser.add_argument("--weight-decay", type=terminal.not_negative, default=5e-4, help="default: 0.0005")
    parser.add_argument(
        "--seed", type=terminal.natural, default=0, help="of weights, order and augmentation (default: 0)"
    )
    parser.add_argument("--device", help="default: cuda where there is one, else cpu")
    parser.add_argument("--root", metavar="FOLDER", help="where datasets lie")
    parser.add_argument("--fresh", action="store_true", help="forget the checkpoint of a stopped run")
    parser.add_argument("--quiet", action="store_true", help="say nothing until the end")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Train and save."""
    import torch

    from .. import data, models, training
    from .._version import __version__

    plan = training.Plan(
        options.epochs, options.lr, options.batch_size, weight_decay=options.weight_decay, seed=options.seed
    )
    images = data.load(options.data, "train", root=options.root)
    test = data.load(options.data, "test", root=options.root) if options.data in data.SOURCES else None
    label = Path(options.data).name or "data"
    out = Path(options.out or f"{options.model.replace(':', '-')}-{label}.safetensors")
    if out.suffix != ".safetensors":
        raise ValueError(f"weights are saved as safetensors: give a name that ends in .safetensors, not {str(out)!r}.")
    checkpoint = out.with_name(f".{out.name}.checkpoint")
    if options.fresh:
        checkpoint.unlink(missing_ok=True)
    if out.is_dir() or checkpoint.is_dir():
        raise ValueError(f"{out} is a folder; give a file.")
    device = terminal.device(options.device)
    torch.manual_seed(options.seed)
    model = models.get(options.model, classes=len(images.classes), channels=images.shape[0])
    if checkpoint.exists() and not options.quiet:
        print(f"continuing from {checkpoint}")
    began = time.monotonic()
    with terminal.bar(f"{options.model} on {images.name}", quiet=options.quiet) as bar:

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
    tested = "" if last.test_accuracy is None else f", {last.test_accuracy:.1%} of the test images right"
    print(f"{out}: {plan.epochs} epochs in {time.monotonic() - began:.0f} s on {device}{tested}")
