"""Streams that change, and what is done to an adapter in them: without attack, and with one in every batch or in some.

A cell is one adapter on one stream. It yields a row of numbers for each batch, and can be stopped and continued.
"""

from __future__ import annotations

import argparse
import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import medbn
from medbn import data
from medbn.attacks import DIA, Cumulative, Interleaved, Scenario
from medbn.methods import Adapter, predict_logits

Row = dict[str, Any]


@dataclass
class Cell:
    """One adapter on one stream."""

    part: str
    name: str
    """What it is, unique."""
    make: Callable[[], Served]
    """Returns what serves the stream."""
    every: int
    """How many batches of each corruption come one after the other."""
    seed: int = 0
    """Of the order of the corruptions; 0 is the benchmark's own."""
    corruptions: list[str] | None = None
    """Other ones than those of all cells."""


class Served:
    """An adapter that serves a stream without attack.

    Args:
        make: returns the adapter.
        alone: whether the adapter starts again with each corruption.
    """

    def __init__(self, make: Callable[[], Adapter], *, alone: bool = False) -> None:
        self.make, self.alone = make, alone
        self.adapter = make()

    def step(self, images: Tensor, labels: Tensor, position: int) -> Row:
        """Serve one batch, at a position within its corruption, and return its row."""
        if self.alone and position == 0:
            self.start()
        before = dict(self.adapter.memory)
        row = self.serve(images, labels)
        return {"position": position, **row, **count_events(before, self.adapter)}

    def start(self) -> None:
        """Start again, as in the first batch."""
        self.adapter.reset()

    def serve(self, images: Tensor, labels: Tensor) -> Row:
        """Serve a batch and return its numbers."""
        return {"error": error_of(predict_logits(self.adapter, images), labels)}

    def state(self) -> Any:
        """Return all that the next batch depends on."""
        return self.adapter.snapshot()

    def load(self, state: Any) -> None:
        """Continue from that."""
        self.adapter.restore(state)


class Within(Served):
    """Every batch is attacked, from the state that clean batches have left; nothing of the attack stays."""

    def __init__(self, make: Callable[[], Adapter], attack: DIA, malicious: slice) -> None:
        super().__init__(make)
        self.attack, self.malicious = attack, malicious

    def serve(self, images: Tensor, labels: Tensor) -> Row:
        poisoned = self.attack(self.adapter, images, labels, self.malicious)
        benign = torch.ones(len(images), dtype=torch.bool, device=images.device)
        benign[self.malicious] = False
        state, before = self.adapter.snapshot(), dict(self.adapter.memory)
        attacked = predict_logits(self.adapter, poisoned)
        under = {f"{name} under attack": n for name, n in count_events(before, self.adapter).items()}
        self.adapter.restore(state)
        clean = predict_logits(self.adapter, images)
        harm = {
            name: self.attack.objective.harm(logits, labels, benign).item()
            for name, logits in (("harm", attacked), ("harm without", clean))
        }
        return {**harm, **under}


class Attacked(Served):
    """A scenario in which the poison stays. The clean stream is served beside it.

    Args:
        make: returns the adapter.
        scenario: makes the scenario of an adapter.
        alone: whether the adapter starts again with each corruption.
        benign: which images of a batch errors are counted on.
    """

    def __init__(
        self,
        make: Callable[[], Adapter],
        scenario: Callable[[Adapter], Scenario],
        *,
        alone: bool = False,
        benign: slice = slice(None),
    ) -> None:
        super().__init__(make, alone=alone)
        self.make_scenario, self.benign = scenario, benign
        self.scenario = scenario(self.adapter)

    def start(self) -> None:
        super().start()
        self.scenario = self.make_scenario(self.adapter)

    def serve(self, images: Tensor, labels: Tensor) -> Row:
        outcome = self.scenario.step(images, labels)
        part = self.benign
        clean, attacked = (error_of(x[part], labels[part]) for x in (outcome.clean, outcome.attacked))
        return {"error": attacked, "without": clean, "added": attacked - clean}

    def state(self) -> Any:
        return self.scenario.state()

    def load(self, state: Any) -> None:
        self.scenario.load(state)


def poison(make: Callable[[], Adapter], attack: DIA, size: int, *, alone: bool) -> Attacked:
    """Return what serves a stream with a fifth of malicious images in every batch, whose poison stays."""
    benign = size - size // 5
    malicious = slice(benign, size)
    return Attacked(make, lambda a: Cumulative(a, attack, malicious), alone=alone, benign=slice(benign))


def own_batches(make: Callable[[], Adapter], attack: DIA, share: float, **where: Any) -> Attacked:
    """Return what serves a stream in which a share of the batches is the attacker's."""
    return Attacked(make, lambda a: Interleaved(a, attack, share=share, **where))


def count_events(before: dict[str, Any], adapter: Adapter) -> dict[str, int]:
    """Return how many changes were declared and how many memories taken up again since then."""
    return {name: adapter.memory[name] - before[name] for name in ("declared", "returned") if name in before}


def first_layer(model: nn.Module) -> nn.Module:
    """Return a model that ends after the first normalisation layer, on which alone changes depend."""
    parts: list[nn.Module] = []
    for part in model.children():
        parts.append(part)
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            break
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def stream(options: argparse.Namespace, cell: Cell) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Return batches of all corruptions in turn, with the position of each among those of its corruption."""
    names = list(cell.corruptions or options.corruptions)
    if cell.seed:
        random.Random(cell.seed).shuffle(names)
    for corruption in names:
        for position, (images, labels) in enumerate(load(options, corruption, cell.every)):
            yield images, labels, position


def load(options: argparse.Namespace, corruption: str, batches: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Return batches of one corruption, shuffled by a seed of its own."""
    frost = {"frost": "synthetic"} if options.data == "digits" and corruption == "frost" else {}
    dataset = data.load(options.data, corruption=corruption, severity=5, root=options.root, **frost)
    dataset = dataset.shuffle(zlib.crc32(f"1 {corruption}".encode()))
    return dataset.batches(options.size, device=options.device, limit=batches, drop_last=True)


def error_of(logits: Tensor, labels: Tensor) -> float:
    """Return the share of wrong predictions in per cent."""
    return 100 * (logits.argmax(dim=1) != labels).float().mean().item()


def make_adapter(model: nn.Module, row: tuple[str, str, dict[str, Any]], size: int) -> Adapter:
    """Return the adapter of a row of METHODS."""
    method, estimator, options = row
    return medbn.adapt(model, method, estimator, **options, **({"batch_size": size} if method == "past" else {}))
