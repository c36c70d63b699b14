"""The last few memories of ``past``, and the choice between them and the batch's own statistics in each pass.

A memory has the moving averages of all layers, the remembered medians of the features of ``_changes.py``, and a number
of images. The choice is made on the device, in the first layer of a pass; the host learns of it after the pass, with
the number of usable images.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import kernels
from ..distributed import Group, gather_rows
from ..layers import RobustBatchNorm
from ._changes import SHARE, changed_share, image_features, lowest_rank, rank_table, round_age
from ._check_state import Values, check_count, check_tensor


@dataclass(frozen=True)
class Settings:
    """The options of ``past`` that concern changes; see there."""

    malicious: float
    fallback: float | None
    memories: int
    false_alarms: float
    momentum: float
    batch_size: int

    def __post_init__(self) -> None:
        for name, least, most in (("malicious", 0.0, 0.5), ("false_alarms", 0.0, 1.0), ("fallback", 0.0, 1.0)):
            value = getattr(self, name)
            if value is not None and not (least <= value < most or value == most == 1.0):
                raise ValueError(f"{name} is a number from {least:g} to {most:g}; got {value!r}.")
        if not self.false_alarms:
            raise ValueError("false_alarms is a probability greater than 0: no test is without false alarms.")
        if self.memories < 1:
            raise ValueError(f"memories is a number of memories, at least 1; got {self.memories!r}.")

    @property
    def chance(self) -> float:
        """The chance of a false alarm for one feature and one side (Markov's inequality; a feature has two sides)."""
        return self.false_alarms * SHARE / 2

    def least_images(self) -> int:
        """Return the least number of images of a batch in which a change can be found."""
        most = 2**16
        sizes = range(1, most)
        size = bisect_left(sizes, True, key=lambda n: lowest_rank(n, n, self.malicious, self.chance) > 1)
        if size == len(sizes):
            raise ValueError(f"with malicious={self.malicious:g}, a test needs more than {most} images.")
        return sizes[size]

    def weight(self, images: int, earlier: int) -> float:
        """Return the weight of a batch of that many images in an average over that many earlier ones.

        All weigh the same until a batch would weigh less than ``momentum``.
        """
        moving = min(self.momentum * (images / self.batch_size), images / (self.batch_size + images))
        return max(moving, images / (earlier + images))

    def tables(self, images: int, remembered: Sequence[int]) -> list[tuple[float, ...]]:
        """Return the ranks for a batch of that many images, one row for each memory."""
        # An average in which a batch weighs w varies like that of 2 / w − 1 batches.
        most = 2 * self.batch_size / self.momentum if self.momentum else math.inf
        ages = [round_age(int(min(n, most)), images) if n else images for n in remembered]
        return [rank_table(images, age, self.malicious, self.chance) for age in ages]


class Memories:
    """The memories of one adapter, which are a part of its ``memory``.

    Args:
        layers: the layers with a moving average, by name.
        settings: the options.
    """

    def __init__(self, layers: Mapping[str, RobustBatchNorm], settings: Settings) -> None:
        self.layers, self.settings = dict(layers), settings
        self._static: dict[str, Tensor] = {}
        self._constants: dict[Any, Tensor] = {}

    @property
    def device(self) -> torch.device:
        """Where the memories are: with the first layer."""
        return _running(next(iter(self.layers.values())))[0].device

    def first(self) -> dict[str, Any]:
        """Return the memory of an adapter that has seen no image."""
        count = self.settings.memories
        return {
            "averages": torch.stack([self.source()] * count),
            "medians": [],
            "remembered": [0] * count,
            "from_source": [self.settings.batch_size] * count,
            "used": [0] * count,
            "current": 0,
            "declared": 0,
            "returned": 0,
        }

    def source(self) -> Tensor:
        """Return the training statistics of all layers in two rows: centres and variances."""
        rows = zip(*map(_running, self.layers.values()), strict=True)
        return torch.stack([torch.cat([s.to(self.device, _wide(s.dtype)) for s in row]) for row in rows])

    def tensors(self, memory: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the tensors of a memory that a pass reads."""
        medians = {"medians": memory["medians"][0]} if memory["medians"] else {}
        return {"averages": memory["averages"], **medians}

    def constants(self, memory: Mapping[str, Any], images: int) -> dict[str, Tensor]:
        """Return what else a pass over a batch of that many images reads, on the device. The same stay the same."""
        return {
            "tables": self._constant(self.settings.tables(images, memory["remembered"])),
            "known": self._constant([count > 0 for count in memory["remembered"]]),
            "current": self._constant([memory["current"]]),
        }

    def constant_weights(self, memory: Mapping[str, Any], images: int) -> Tensor:
        """Return the weight of a batch in each memory, on the device."""
        return self._constant(self.weights(memory, images))

    def load(self, memory: Mapping[str, Any], images: int, *, in_place: bool) -> dict[str, Tensor]:
        """Return all that a pass reads; with ``in_place`` in tensors that stay where they are, as CUDA graphs need."""
        tensors = self.tensors(memory) | self.constants(memory, images)
        if not in_place:
            return tensors
        if "medians" in self._static and "medians" not in tensors:  # the adapter was reset
            tensors["medians"] = torch.zeros_like(self._static["medians"])
        for name, value in tensors.items():
            static = self._static.get(name)
            if static is not None and (static.shape, static.device) == (value.shape, value.device):
                static.copy_(value)
            else:
                self._static[name] = value.clone()
        return {name: self._static[name] for name in tensors}

    def weights(self, memory: Mapping[str, Any], images: int) -> list[float]:
        """Return the weight of a batch in each memory."""
        earlier = zip(memory["remembered"], memory["from_source"], strict=True)
        return [self.settings.weight(images, sum(parts)) for parts in earlier]

    def commit(self, memory: dict[str, Any], seen: Seen, images: int) -> None:
        """Commit a batch to its memory: the one that was chosen, or a new one in place of the least recently used."""
        if seen.declared is None:
            seen.wait_for(seen.decision[0])
        images = min(images, self.settings.batch_size)  # one call weighs at most as much as a batch
        slot = memory["used"].index(min(memory["used"])) if seen.declared else seen.index
        if seen.declared:
            memory["remembered"][slot] = memory["from_source"][slot] = 0
        weight = self.weights(memory, images)[slot]  # 1 in a new memory
        averages = memory["averages"]
        old = self.source() if seen.declared else averages[slot]
        new = torch.where(seen.statistics.isfinite().all(dim=0), seen.statistics, old)
        averages[slot] = old + weight * (new - old)
        if not memory["medians"]:
            memory["medians"] = [torch.zeros_like(seen.medians).repeat(self.settings.memories, 1)]
        medians = memory["medians"][0]
        medians[slot] += weight * (seen.medians - medians[slot])
        memory["remembered"][slot] += images
        memory["declared"] += int(bool(seen.declared))
        memory["returned"] += int(not seen.declared and slot != memory["current"])
        memory["current"] = slot
        memory["used"][slot] = max(memory["used"]) + 1
        self.write(averages[slot])

    def check(self, memory: Mapping[str, Any], values: Values) -> None:
        """Require memories of these layers and options in a loaded state."""
        averages, medians = memory["averages"], memory["medians"]
        count = self.settings.memories
        shape = (count, 2, sum(layer.num_features for layer in self.layers.values()))
        check_tensor(values, "the averages of the memories", averages, shape)
        check_tensor(values, "the variances of the memories", averages[:, 1], least=0.0)
        if not isinstance(medians, list) or len(medians) > 1:
            raise ValueError("the medians of the memories must be a list of at most one tensor.")
        for value in medians:
            if not isinstance(value, Tensor) or value.dim() != 2 or len(value) != count:
                raise ValueError(f"the medians must be of {count} memories; make the adapter with the same memories=.")
            check_tensor(values, "the medians of the memories", value)
        for name in ("remembered", "from_source", "used"):
            if not isinstance(memory[name], list) or len(memory[name]) != count:
                raise ValueError(f"{name} must be a list of {count} numbers; make the adapter with the same memories=.")
            for value in memory[name]:
                check_count(name, value)
        for name in ("current", "declared", "returned"):
            check_count(name, memory[name])
        if memory["current"] >= count:
            raise ValueError(f"the current memory must be one of {count}, got {memory['current']}.")

    def write(self, averages: Tensor) -> None:
        """Write averages into the layers."""
        layers = self.layers.values()
        sizes = [layer.num_features for layer in layers]
        split: Any = torch.split_with_sizes_copy  # copies, so that layers share no memory
        for layer, mean, var in zip(layers, *(split(row, sizes) for row in averages), strict=True):
            like: Any = layer.running_mean
            layer._buffers["ema_mean"], layer._buffers["ema_var"] = mean.to(like), var.to(like)

    def _constant(self, values: list[Any]) -> Tensor:
        """Return a tensor of these values. It is kept, because CUDA graphs may read it."""
        key = (repr(values), self.device)
        if key not in self._constants:
            self._constants[key] = torch.tensor(values, device=self.device)
        return self._constants[key]


@dataclass
class Seen:
    """What one pass has seen, and what was chosen."""

    statistics: Tensor
    """Of the batch, in all layers: two rows, mixed as they enter an average. NaN where they were not estimated."""
    medians: Tensor
    """Of the features."""
    decision: Tensor
    """Two integers on the device: whether a change was declared, and which memory was chosen otherwise."""
    declared: bool | None = None
    """The same on the host, once it has waited."""
    index: int = 0

    def wait_for(self, images: Tensor) -> int:
        """Wait for the device; return the number of images, and learn what was chosen."""
        count, declared, index = torch.cat([images.view(1), self.decision.to(images.device)]).tolist()
        self.declared, self.index = bool(declared), int(index)
        return int(count)


class Choice:
    """The choice of one pass; layers call it (``hooks.choose_statistics``).

    Args:
        memories: of the adapter.
        tensors: from ``Memories.load``, or ``tensors`` and ``constants``.
        weights: the weight of the batch in each memory, if the averages include it, as a surrogate's do.
    """

    def __init__(self, memories: Memories, tensors: Mapping[str, Tensor], weights: Tensor | None = None) -> None:
        self._settings, self._tensors, self._weights = memories.settings, tensors, weights
        self._slices: dict[RobustBatchNorm, slice] = {}
        start = 0
        for layer in memories.layers.values():
            self._slices[layer] = slice(start, start + layer.num_features)
            start += layer.num_features
        self._estimated: dict[RobustBatchNorm, tuple[Tensor, Tensor]] = {}
        self._declared: Tensor | None = None

    def __call__(self, layer: RobustBatchNorm, x: Tensor, centre: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Return the statistics that a layer normalises with."""
        if self._declared is None:
            with torch.no_grad():
                self._declared = self._decide(x, layer._valid, layer._active_group)
        if layer not in self._estimated:
            self._estimated[layer] = centre.detach(), variance.detach()
        prior, fallback = self._priors(layer)
        usable = centre.isfinite() & variance.isfinite()
        declared = self._declared.to(centre.device) & usable
        remembered = self._remembered[:, self._slices[layer]].to(centre)
        chosen = []
        for new, old, source in zip((centre, variance), remembered, _running(layer), strict=True):
            new, source = torch.where(usable, new, 0.0), source.to(new)
            if self._weights is not None:
                weight = self._weights.index_select(0, self._index).to(new)
                old = torch.where(usable, weight * _mix(new, source, prior) + (1.0 - weight) * old, old)
            chosen.append(torch.where(declared, _mix(new, source, fallback), old))
        return chosen[0], chosen[1]

    def _decide(self, x: Tensor, valid: Tensor | None, group: Group | None) -> Tensor:
        """Choose a memory for the batch, and return whether a change is declared because none fits."""
        tensors, count = self._tensors, self._settings.memories
        features = image_features(x).to(tensors["averages"])
        usable = features.isfinite().all(dim=1)
        usable = usable if valid is None else usable & valid.to(usable.device)
        if group is not None:
            features, usable = gather_rows(features, group), gather_rows(usable, group)
        medians = tensors.get("medians", features.new_zeros(count, features.shape[1]))
        shares, enough = changed_share(features, medians, usable, tensors["tables"])
        changed = enough & ((shares > SHARE) | ~tensors["known"])
        current = tensors["current"]
        stays = ~changed.index_select(0, current)
        # To return is a claim of its own: a young memory has bounds so wide that nearly anything is within them.
        half = torch.full_like(tensors["tables"], 0.5 - self._settings.malicious)
        apart, _ = changed_share(features, medians, usable, half)
        fits = enough & tensors["known"] & ~changed & (apart <= SHARE)
        least, best = torch.where(fits, apart, torch.inf).min(dim=0, keepdim=True)
        self._index = torch.where(stays, current, best)
        self._remembered = tensors["averages"].index_select(0, self._index).squeeze(0)
        self._medians = kernels.middle_over_images(features, usable)
        declared = ~stays & least.isinf()
        self._decision = torch.cat([declared.long(), self._index])
        return declared

    def _priors(self, layer: RobustBatchNorm) -> tuple[float, float]:
        """Return the weights of the training statistics: in an average, and in a declared batch."""
        prior = layer.estimator.prior
        return prior, prior if self._settings.fallback is None else self._settings.fallback

    def gather(self) -> Seen:
        """Return what the pass has seen. Called after it, and after each replay of a CUDA graph of it.

        A new memory starts with what has normalised its batch: statistics of deep layers are of activations that were
        normalised so in the layers before.
        """
        rows: list[list[Tensor]] = [[], []]
        declared = self._decision[0] > 0
        for layer, part in self._slices.items():
            like = self._remembered[:, part]
            estimated = self._estimated.get(layer, (torch.full_like(like[0], torch.nan),) * 2)
            for row, new, source in zip(rows, estimated, _running(layer), strict=True):
                usual, first = (_mix(new.to(like), source.to(like), p) for p in self._priors(layer))
                row.append(torch.where(declared, first, usual))
        statistics = torch.stack([torch.cat(row) for row in rows])
        return Seen(statistics, self._medians.clone(), self._decision)


def _running(layer: RobustBatchNorm) -> tuple[Tensor, Tensor]:
    """Return the training statistics of a layer."""
    assert layer.running_mean is not None
    assert layer.running_var is not None
    return layer.running_mean, layer.running_var


def _mix(batch: Tensor, source: Tensor, prior: float) -> Tensor:
    """Return a mixture in which the training statistics weigh ``prior``."""
    return source if prior == 1.0 else batch if prior == 0.0 else (1.0 - prior) * batch + prior * source


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Return the precision in which averages of that type are kept."""
    return torch.float64 if dtype == torch.float64 else torch.float32
