"""The last few memories of ``past``: averages of statistics, with which later batches are compared and normalised.

A memory has the moving averages of all layers, the remembered medians of the features of ``_changes.py`` and how far
images are spread around them, and a number of images. ``_choice.py`` chooses between them.

A batch pulls an average by a bounded amount, whatever its images are. A batch that is malicious by half has medians as
far out as few benign images are, and one that is malicious as a whole has any. If benign batches are all alike, and
others have a share r < ½, those keep an average within r / (1 − r) of the bound from where it would be without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..kernels import MAD_TO_SIGMA
from ..layers import RobustBatchNorm
from ._changes import TINY
from ._check_state import Values, check_count, check_tensor
from ._memory_settings import Settings

STEP = 0.05
"""How far a batch can pull an average: in standard deviations of a channel, and in the logarithm of its variance.

Nine in ten channels of a batch of 200 images, without attack, are nearer to the average than this."""
FEATURE_STEP = 0.3
"""The same for the median of a feature, in standard deviations between images: three standard errors of 200 images."""


@dataclass
class Seen:
    """What one pass has seen, and what was chosen."""

    statistics: Tensor
    """Of the batch, in all layers: two rows, mixed as they enter an average. NaN where they were not estimated."""
    medians: Tensor
    """Of the features."""
    spreads: Tensor
    """Of the features: the median of the images' distances from the median."""
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
        return source_statistics(next(iter(self.layers.values())))[0].device

    def first(self) -> dict[str, Any]:
        """Return the memory of an adapter that has seen no image."""
        count = self.settings.memories
        return {
            "averages": torch.stack([self.source()] * count),
            "medians": [],
            "spreads": [],
            "remembered": [0] * count,
            "from_source": [self.settings.batch_size] * count,
            "used": [0] * count,
            "current": 0,
            "declared": 0,
            "returned": 0,
        }

    def source(self) -> Tensor:
        """Return the training statistics of all layers in two rows: centres and variances."""
        rows = zip(*map(source_statistics, self.layers.values()), strict=True)
        return torch.stack([torch.cat([s.to(self.device, _wide(s.dtype)) for s in row]) for row in rows])

    def tensors(self, memory: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the tensors of a memory that a pass reads."""
        medians = {"medians": memory["medians"][0]} if memory["medians"] else {}
        return {"averages": memory["averages"], **medians}

    def constants(self, memory: Mapping[str, Any], images: int, *, weights: bool = False) -> dict[str, Tensor]:
        """Return what else a pass over a batch of that many images reads, on the device.

        With ``weights``, that of the batch in each memory too, which a surrogate reads.
        """
        return {
            "tables": self._constant(self.settings.tables(images, memory["remembered"])),
            "known": self._constant([count > 0 for count in memory["remembered"]]),
            "current": self._constant([memory["current"]]),
            **({"weights": self._constant(self.weights(memory, images))} if weights else {}),
        }

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
        averages = memory["averages"]
        old = self.source() if seen.declared else averages[slot]
        new = torch.where(seen.statistics.isfinite().all(dim=0), seen.statistics, old)
        if not memory["medians"]:
            memory["medians"], memory["spreads"] = (
                [torch.zeros_like(f).repeat(self.settings.memories, 1)] for f in (seen.medians, seen.spreads)
            )
        medians, spreads = memory["medians"][0], memory["spreads"][0]
        if seen.declared:
            averages[slot], medians[slot], spreads[slot] = new, seen.medians, seen.spreads
        else:
            weight = self.weights(memory, images)[slot]
            averages[slot] = torch.stack(
                [
                    approach(old[0], new[0], weight, STEP * old[1].sqrt()),
                    approach_log(old[1], new[1], weight),
                ]
            )
            bound = FEATURE_STEP * MAD_TO_SIGMA * spreads[slot]
            medians[slot] = approach(medians[slot], seen.medians, weight, bound)
            spreads[slot] = approach_log(spreads[slot], seen.spreads, weight)
        memory["remembered"][slot] += images
        memory["declared"] += int(bool(seen.declared))
        memory["returned"] += int(not seen.declared and slot != memory["current"])
        memory["current"] = slot
        memory["used"][slot] = max(memory["used"]) + 1
        self.write(averages[slot])

    def check(self, memory: Mapping[str, Any], values: Values) -> None:
        """Require memories of these layers and options in a loaded state."""
        averages = memory["averages"]
        count = self.settings.memories
        shape = (count, 2, sum(layer.num_features for layer in self.layers.values()))
        check_tensor(values, "the averages of the memories", averages, shape)
        check_tensor(values, "the variances of the memories", averages[:, 1], least=0.0)
        for name in ("medians", "spreads"):
            tensors = memory[name]
            if not isinstance(tensors, list) or len(tensors) != len(memory["medians"]) or len(tensors) > 1:
                raise ValueError(f"the {name} of the memories must be a list of at most one tensor.")
            for value in tensors:
                if not isinstance(value, Tensor) or value.dim() != 2 or len(value) != count:
                    raise ValueError(
                        f"the {name} must be of {count} memories; make the adapter with the same memories=."
                    )
                check_tensor(values, f"the {name} of the memories", value, least=0.0 if name == "spreads" else None)
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


def approach(old: Tensor, new: Tensor, weight: float, bound: Tensor) -> Tensor:
    """Return an average after a batch, which pulls no further than a bound."""
    return old + weight * torch.maximum(torch.minimum(new - old, bound), -bound)


def approach_log(old: Tensor, new: Tensor, weight: float) -> Tensor:
    """Return an average of positive numbers after a batch, which pulls no further than the factor exp(STEP)."""
    old, new = old.clamp(min=TINY), new.clamp(min=TINY)
    return old * (weight * (new / old).log().clamp(-STEP, STEP)).exp()


def source_statistics(layer: RobustBatchNorm) -> tuple[Tensor, Tensor]:
    """Return the training statistics of a layer."""
    assert layer.running_mean is not None
    assert layer.running_var is not None
    return layer.running_mean, layer.running_var


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Return the precision in which averages of that type are kept."""
    return torch.float64 if dtype == torch.float64 else torch.float32
