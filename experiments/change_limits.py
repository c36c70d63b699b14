"""Which changes does the detection of `past` find, and which are false alarms? Few classes, mixtures, slow changes.

    python experiments/change_limits.py [classes] [mixtures] [slow] [--data cifar10-c]

classes    a batch of 1, 2, 3 or 5 classes after ten batches of all classes and the same corruption
mixtures   a batch of which 10 to 100 % of the images have the next corruption, after ten batches of one
slow       digits that become brighter by 0.02 or 0.005 in every batch, with errors

The first two need the first layer alone, on which the choice depends. ``--data digits`` needs no download.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from _change_cells import error_of, first_layer, load, make_adapter
from _cifar import resnet26
from medbn import cli, data, models
from medbn.data import corruptions
from medbn.methods import Adapter, predict_logits

OURS = ("past", "image_median@0.5", {"changes": "detect"})
BEFORE = 10
"""Batches that are remembered."""


def main() -> None:
    parser = cli.Parser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("parts", nargs="*", help="classes, mixtures, slow; default: all", metavar="PART")
    parser.add_argument("--data", default="cifar10-c", choices=("cifar10-c", "digits"))
    parser.add_argument("--corruptions", nargs="+", default=list(corruptions.NAMES), metavar="C")
    parser.add_argument("--repeats", type=cli.positive_int, default=5, help="batches of each kind")
    parser.add_argument("--root", type=Path, help="the data folder")
    options = parser.parse_args()
    for name in options.parts:
        if name not in PARTS:
            raise ValueError(f"there is no part {name!r}; the parts are {', '.join(PARTS)}.")
    options.device, digits = "cpu", options.data == "digits"
    options.size = 100 if digits else 200
    for name in options.parts or PARTS:
        model = models.get("resnet-small", weights="shipped") if digits or name == "slow" else resnet26(options.root)
        for line in PARTS[name](model, options):
            print(f"{name}: {line}", flush=True)


def remember(model: nn.Module, options: argparse.Namespace, corruption: str) -> tuple[Adapter, Tensor, Tensor]:
    """Return an adapter of the first layer that remembers a corruption, and other images of it with their labels."""
    tta = make_adapter(first_layer(model), OURS, options.size)
    batches = list(load(options, corruption, 4 * BEFORE))
    few = batches[: min(BEFORE, len(batches) // 2)]
    for images, _ in few:
        tta(images)
    images, labels = (torch.cat(parts) for parts in zip(*batches[len(few) :], strict=True))
    return tta, images, labels


def finds_change(tta: Adapter, images: Tensor) -> bool:
    """Return whether a batch is a change; the adapter stays as it is."""
    before, state = tta.memory["declared"], tta.snapshot()
    tta(images)
    found = bool(tta.memory["declared"] > before)
    tta.restore(state)
    return found


def few_classes(model: nn.Module, options: argparse.Namespace) -> Iterator[str]:
    """Count alarms in batches of few classes."""
    counts: dict[int, list[bool]] = {1: [], 2: [], 3: [], 5: []}
    drawn = random.Random(0)
    for corruption in options.corruptions:
        tta, images, labels = remember(model, options, corruption)
        for count, found in counts.items():
            for _ in range(options.repeats):
                chosen = torch.isin(labels, torch.tensor(drawn.sample(range(10), count)))
                found.append(finds_change(tta, images[chosen][: options.size]))
    for count, found in counts.items():
        yield f"{count} classes: {sum(found)} alarms in {len(found)} batches"


def mixtures(model: nn.Module, options: argparse.Namespace) -> Iterator[str]:
    """Count changes found in batches of two corruptions."""
    shares = (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 1.0)
    counts: dict[float, list[bool]] = {share: [] for share in shares}
    names = options.corruptions
    for corruption, other in zip(names, [*names[1:], names[0]], strict=True):
        tta, images, _ = remember(model, options, corruption)
        others = next(load(options, other, 1))[0]
        for share, found in counts.items():
            new = round(share * options.size)
            found.append(finds_change(tta, torch.cat([images[: options.size - new], others[:new]])))
    for share, found in counts.items():
        yield f"{100 * share:.0f} % of the images: found in {sum(found)} of {len(found)} batches"


def slow_changes(model: nn.Module, options: argparse.Namespace) -> Iterator[str]:
    """Measure errors while digits become brighter."""
    rows = {"TeBN": ("tebn", "mean", {}), "past": ("past", OURS[1], {"changes": None}), "detection": OURS}
    for (step, count), (name, row) in itertools.product(((0.02, 30), (0.005, 60)), rows.items()):
        tta, errors = make_adapter(model, row, 100), []
        digits = itertools.chain.from_iterable(
            data.load("digits").shuffle(seed).batches(100, drop_last=True) for seed in itertools.count()
        )
        for number, (images, labels) in enumerate(itertools.islice(digits, count)):
            errors.append(error_of(predict_logits(tta, (images + step * number).clamp(0, 1)), labels))
        changes = f", changes declared: {tta.memory['declared']}" if "declared" in tta.memory else ""
        yield f"{step:g} a batch, {count} batches, {name}: {sum(errors) / count:.1f} %{changes}"


PARTS = {"classes": few_classes, "mixtures": mixtures, "slow": slow_changes}


if __name__ == "__main__":
    sys.exit(cli.run_program("change_limits.py", main))
