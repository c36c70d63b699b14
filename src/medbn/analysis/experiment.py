"""The settings of figures with their data, models and poisoned batches, which all figures share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from .. import hooks
from ..attacks import DIA
from ..bench import (
    UNCORRUPTED,
    Cell,
    LoadedCell,
    Place,
    Store,
    in_memory_format,
    load_cell,
    machine_facts,
    make_adapter,
)
from ..data import Dataset, SegmentationDataset
from ..layers import RobustBatchNorm
from ..methods import Adapter, group_stages
from .cache import read_poisoned, write_poisoned
from .settings import Settings

T = TypeVar("T")
OnStep = Callable[[str, int, int], None]
"""Called with what is done, such as an attack, how many of its steps are done, and how many there are."""


ATTACK = "attack"
"""What ``on_step`` is told of an attack."""


def ignore(what: str, done: int, total: int) -> None:
    """Do nothing with progress."""


class Experiment:
    """Settings with everything that figures measure: streams, adapters, and batches poisoned once for all figures.

    Args:
        settings: what to measure on.
        place: the data folder and the device.
        store: keeps poisoned batches and numbers; None keeps the batches in memory alone.
        command: the command that is stored with the numbers.
        on_step: called after every step of what takes long: attacks, gradients of images. A stored batch is one step.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        place: Place | None = None,
        store: Store | None = None,
        command: str = "",
        on_step: OnStep = ignore,
    ) -> None:
        self.settings, self.place = settings or Settings(), place or Place()
        self.store, self.command, self.on_step = store, command, on_step
        self._poisoned: dict[tuple[str, int], Tensor] = {}
        self._unadapted: tuple[Cell, Adapter] | None = None

    def cell(
        self,
        estimator: str,
        *,
        epsilon: float = 1.0,
        objective: str = "targeted",
        corruption: str | None = None,
        method: str = "tebn",
        gradient: str | None = None,
    ) -> Cell:
        """Return the cell of the bench of which a figure shows batches: by default the paper's, under TeBN."""
        settings = self.settings
        attack = replace(settings.attack, objective=objective, epsilon=epsilon)
        attack = attack if gradient is None else replace(attack, gradient=gradient)
        corruption = corruption or settings.corruption
        return Cell(settings.setting, corruption, method, estimator, attack, "instant", settings.seed)

    def load(self, cell: Cell) -> LoadedCell:
        """Return a cell with its images and its model."""
        return load_cell(cell, self.place, self.settings.batches)

    def adapter(self, cell: Cell) -> Adapter:
        """Return a new adapter of a cell, which has not adapted yet."""
        return make_adapter(self.load(cell), self.place.device)

    def unadapted(self, cell: Cell) -> Adapter:
        """Return an adapter of a cell for what leaves it as it is: attacks, and passes through its surrogate.

        The last one is kept, for it is the same for all corruptions and attacks.
        """
        same = replace(cell, corruption=UNCORRUPTED, attack=None)
        if self._unadapted is None or self._unadapted[0] != same:
            self._unadapted = same, self.adapter(cell)
        return self._unadapted[1]

    def batch(self, cell: Cell, number: int = 0) -> tuple[Tensor, Tensor]:
        """Return the images and the labels of a batch of the stream, not attacked."""
        dataset, size = self._dataset_with(cell, number), self.settings.setting.batch_size
        batches = dataset.batches(size, device=self.place.device, first=number, limit=1)
        return next(in_memory_format(batches))

    def numbers(self, cell: Cell) -> range:
        """Return the numbers of the batches that are attacked, which all are in the stream."""
        self._dataset_with(cell, self.settings.batches - 1)
        return range(self.settings.batches)

    def _dataset_with(self, cell: Cell, number: int) -> Dataset | SegmentationDataset:
        dataset, size = self.load(cell).dataset, self.settings.setting.batch_size
        if number >= len(dataset) // size:
            raise ValueError(
                f"{dataset.name} has {len(dataset) // size} batches of {size} images; there is no batch {number + 1}."
            )
        return dataset

    @property
    def malicious(self) -> slice:
        """Which images of each batch are malicious: the last ones."""
        setting = self.settings.setting
        return slice(setting.batch_size - setting.malicious, setting.batch_size)

    @property
    def benign(self) -> Tensor:
        """``(B,)`` mask of the images that are not malicious, on the device."""
        mask = torch.ones(self.settings.setting.batch_size, dtype=torch.bool, device=self.place.device)
        mask[self.malicious] = False
        return mask

    def poisoned(self, cell: Cell, number: int = 0) -> Tensor:
        """Return a batch of a cell under its attack, which is crafted against the un-adapted state once and kept."""
        loaded = self.load(cell)
        images, labels = self.batch(cell, number)
        key = (loaded.key, number)
        if key not in self._poisoned and self.store is not None:
            stored = read_poisoned(self.store, *key, tuple(images[self.malicious].shape))
            if stored is not None:
                self._poisoned[key] = stored
        if key in self._poisoned:
            self.on_step(ATTACK, 1, 1)
        else:
            began = time.perf_counter()
            self._poisoned[key] = self._craft(cell, images, labels)
            if self.store is not None:
                facts, seconds = machine_facts(self.place), time.perf_counter() - began
                write_poisoned(self.store, *key, self._poisoned[key], cell.to_dict(), facts, seconds)
        poisoned = images.clone()
        poisoned[self.malicious] = self._poisoned[key].to(images)
        return poisoned

    def build_attack(self, cell: Cell) -> DIA:
        """Return the attack of a cell, which reports its steps."""
        assert cell.attack is not None
        attack = cell.attack.build(cell.seed)
        return replace(attack, callback=lambda done, images, value: self.on_step(ATTACK, done, attack.steps))

    def _craft(self, cell: Cell, images: Tensor, labels: Tensor) -> Tensor:
        """Return the malicious images of a batch."""
        attack = self.build_attack(cell)
        return attack(self.unadapted(cell), images, labels, self.malicious)[self.malicious].detach().cpu()

    def shown_layers(self, adapter: Adapter) -> list[str]:
        """Return the names of the layers that figures of single layers show, in order."""
        names = list(adapter.layers)
        return names if self.settings.layers == "all" else one_per_stage(names)


def one_per_stage(names: list[str]) -> list[str]:
    """Return the first layer of a model if it is before all stages, and the last one of each stage.

    A stage's last layer is the last with a name of its own; layers of shortcuts are mostly numbered in a Sequential.

    >>> one_per_stage(["bn1", "layer1.0.bn1", "layer1.0.bn2", "layer2.0.bn1", "layer2.0.bn2", "layer2.0.shortcut.1"])
    ['bn1', 'layer1.0.bn2', 'layer2.0.bn2']
    """
    stages = group_stages(names)
    if not stages:
        return names if len(names) <= 4 else [names[i * (len(names) - 1) // 3] for i in range(4)]
    first = [] if names[0] in stages[0] else names[:1]
    named = [[name for name in stage if not name.rpartition(".")[2].isdigit()] or stage for stage in stages]
    return first + [stage[-1] for stage in named]


@torch.no_grad()
def visit_layers(adapter: Adapter, images: Tensor, reduce: Callable[[str, RobustBatchNorm, Tensor], T]) -> dict[str, T]:
    """Run one forward pass that changes nothing, and return what ``reduce`` makes of each layer's input.

    ``reduce(name, layer, input)`` is called while the pass runs, so that no more than one layer's input is kept.
    """
    results: dict[str, T] = {}
    handles = [
        layer.register_forward_pre_hook(
            lambda layer, inputs, name=name: results.__setitem__(name, reduce(name, layer, inputs[0].detach()))
        )
        for name, layer in hooks.robust_layers(adapter.model).items()
    ]
    try:
        adapter.surrogate()(images)
    finally:
        for handle in handles:
            handle.remove()
    return results
