"""``medbn demo changes``: a stream of digits that changes, and an attacker who feigns a change."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import attacks, data, methods, models
from ..methods import Adapter

BATCH, MALICIOUS = 100, 20
PARTS = (
    (3, "clear", "none"),
    (3, "brightness", "none"),
    (2, "clear", "none"),
    (2, "brightness", "none"),
    (4, "brightness", "alarm"),
    (1, "brightness", "owned"),
    (2, "brightness", "none"),
)
"""How many batches of which images come, and what the attacker does."""
ROWS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("tebn", "tebn", "mean", {}),
    ("past", "past", "image_median@0.5", {"batch_size": BATCH}),
    ("past, detect", "past", "image_median@0.5", {"batch_size": BATCH, "changes": "detect"}),
)
"""The columns: a title, a method, an estimator and options."""
NOTES = {"none": "", "alarm": f"+ {MALICIOUS} malicious", "owned": "all malicious"}


@dataclass
class Step:
    """One batch of the stream."""

    images: str
    attack: str
    errors: list[float]
    """In per cent, of the benign images, for each column; NaN if there are none."""
    event: str
    """What the last column's adapter did: ``"stays"``, ``"change"`` or ``"known again"``."""


def run_stream(device: str) -> Iterator[Step]:
    """Serve the stream to every adapter, batch by batch."""
    model = models.get("resnet-small", weights="shipped").to(device)
    adapters = [methods.adapt(model, method, name, **options) for _, method, name, options in ROWS]
    number = 0
    for count, images_name, kind in PARTS:
        for images, labels in itertools.islice(_batches(images_name, device), number, number + count):
            benign = {"none": BATCH, "alarm": BATCH - MALICIOUS, "owned": 0}[kind]
            poisoned = _attack(kind, number, adapters[-1], images, labels)
            before = dict(adapters[-1].memory)
            errors = []
            for adapter in adapters:
                wrong = methods.predict_logits(adapter, poisoned).argmax(dim=1) != labels
                errors.append(100 * wrong[:benign].float().mean().item() if benign else math.nan)
            events = [name for name in ("declared", "returned") if adapters[-1].memory[name] > before[name]]
            event = {"declared": "change", "returned": "known again"}[events[0]] if events else "stays"
            yield Step(images_name.replace("_", " "), kind, errors, event)
            number += 1


def print_stream(device: str, quiet: bool) -> None:
    """Run the stream, print a line for each batch, and say what to see in them."""
    if not quiet:
        print(
            f"Batches of {BATCH} handwritten digits; the images change three times. Wrong predictions in per cent, of"
            " benign images.\n`past` predicts with what it remembers; with changes='detect' it finds changes. Then an"
            f" attacker crafts {MALICIOUS} images\nof each batch to feign a change, and at last a whole batch.\n"
        )
    print(f"{'images':14}{'attacker':16}" + "".join(f"{title:>14}" for title, *_ in ROWS) + f"  {ROWS[-1][0]}")
    steps = []
    for step in run_stream(device):
        steps.append(step)
        errors = "".join(_align(error, ".0f") for error in step.errors)
        print(f"{step.images:14}{NOTES[step.attack]:16}{errors}  {step.event}", flush=True)
    columns = zip(*(step.errors for step in steps if step.attack != "owned"), strict=True)
    print(f"{'mean':30}" + "".join(_align(statistics.fmean(column), ".1f") for column in columns))
    changes = [after for before, after in itertools.pairwise(steps) if before.images != after.images]
    found = sum(step.event != "stays" for step in changes)
    raised = sum(step.event != "stays" for step in steps if step.attack == "alarm")
    crafted = sum(step.attack == "alarm" for step in steps)
    if not quiet:
        print(
            f"\nChanges followed at once: {found} of {len(changes)}. Alarms in {crafted} batches in which"
            f" {MALICIOUS} % of the images were crafted to raise one: {raised}.\nA batch that is all the attacker's"
            " does raise one, and the next batch returns to what was remembered."
        )


def _align(error: float, form: str) -> str:
    return f"{'–' if math.isnan(error) else format(error, form):>14}"


def _batches(name: str, device: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Return endless batches of digits, in the order of one shuffle after the other."""
    digits = data.load("digits") if name == "clear" else data.load("digits", corruption=name, severity=5)
    for seed in itertools.count():
        yield from digits.shuffle(seed).batches(BATCH, device=device, drop_last=True)


def _attack(kind: str, number: int, adapter: Adapter, images: Tensor, labels: Tensor) -> Tensor:
    """Return the batch with the attacker's images at its end."""
    if kind == "none":
        return images
    if kind == "owned":
        board = attacks.DIA(steps=0, start="checkerboard")
        both, classes = torch.cat([images, images]), torch.cat([labels, labels])
        return board(adapter, both, classes, slice(BATCH, None))[BATCH:]
    side = ("above", "below")[number % 2]
    attack = attacks.DIA(attacks.objectives.FalseAlarm(side), steps=10, step_size=0.1, start="clean", graph=False)
    return attack(adapter, images, labels, slice(BATCH - MALICIOUS, BATCH))
