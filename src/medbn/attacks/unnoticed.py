"""An attacker who knows the monitor, and stays below its notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import hooks
from ..methods import Adapter
from ..monitor import Batch as MonitoredBatch
from ..monitor import Moments, choose_layers, reduce_layer, signals
from ._batch import Batch
from .dia import DIA
from .registry import register


@register("unnoticed")
@dataclass(frozen=True)
class Unnoticed(DIA):
    """DIA that also keeps down the signals by which ``medbn.Monitor`` would notice it.

    From the objective it subtracts ``stealth`` times the pressure in the watched layers, summed over layers, and the
    distance by which its images are farther from the others than the monitor's limit for outliers, averaged over them.

    Args:
        stealth: the weight of staying unnoticed.
        layers: the layers that the monitor reads; empty for those that it reads by default.
    """

    stealth: float = 10.0
    layers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.stealth >= 0:
            raise ValueError(f"stealth is a weight, at least 0, got {self.stealth}.")

    def evaluate(
        self, adapter: Adapter, surrogate: Callable[..., Tensor], batch: Batch, malicious: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the objective less what a monitor would notice, and the surrogate's logits."""
        watched = choose_layers(adapter, self.layers or None)
        poisoned = batch.insert(malicious)
        with hooks.observe(adapter.model) as observations:
            value, logits = super().evaluate(adapter, surrogate, batch, malicious)
            inputs = {o.name: o.input for o in observations}
        first = next(iter(watched))
        reduced = {
            name: reduce_layer(layer, x, name == first)
            for name, layer in watched.items()
            if (x := inputs.get(name)) is not None
        }
        moments = Moments.of(reduced, None)
        seen = MonitoredBatch(adapter, poisoned, None, None, moments, None)
        pressure = torch.stack([torch.as_tensor(one) for one in signals.pressure(seen).values()]).sum()
        excess = (moments[0].distances - signals.OUTLIER).clamp(min=0)
        return value - self.stealth * (pressure + torch.where(batch.benign, 0.0, excess).mean()), logits
