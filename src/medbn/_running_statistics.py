"""The running statistics of a robust layer: which are mixed with the batch's, and what writes them.

``running_mean`` and ``running_var`` are the source statistics, ``ema_mean`` and ``ema_var`` the moving average of the
policy ``ema``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from ._layer_settings import LayerSettings
from ._normalise import KernelNormalised, Normalised
from .policies import Policy


class RunningStatistics(LayerSettings):
    """A BatchNorm with source statistics and a moving average."""

    # The moving average of the policy `ema`; None while it still equals the source statistics.
    ema_mean: Tensor | None
    ema_var: Tensor | None
    num_batches_tracked: Tensor | None

    @property
    def _batch_weight(self) -> float:
        """The weight of the batch's statistics; ``_running_statistics`` have the rest."""
        return self._policy.weight * (1.0 - self._estimator.prior)

    def _running_statistics(self) -> tuple[Tensor, Tensor]:
        """Return the centre and the variance that are mixed with the batch's.

        They are the policy's reference; under ``ema`` mixed with the source statistics, if the estimator has a prior.
        """
        prior, weight = self._estimator.prior, self._policy.weight
        reference = self._reference_statistics()
        mixes = bool(prior and weight) and self._policy.reference == "ema"
        if not mixes or self.running_mean is None or self.running_var is None:
            return reference
        part = weight * prior / (1.0 - self._batch_weight)
        source = (self.running_mean, self.running_var)
        mean, var = (part * s + (1.0 - part) * r for s, r in zip(source, reference, strict=True))
        return mean, var

    def _reference_statistics(self) -> tuple[Tensor, Tensor]:
        """Return the moving average under the policy ``ema``, else the source statistics."""
        moving = self._policy.reference == "ema" and self.ema_mean is not None
        mean, var = (self.ema_mean, self.ema_var) if moving else (self.running_mean, self.running_var)
        if mean is None or var is None:
            raise RuntimeError(
                f"policy {self.policy} needs source statistics, and this layer's running_mean and running_var are gone;"
                " keep them, or use policy 'batch'."
            )
        return mean, var

    @property
    def _has_own_statistics(self) -> bool:
        """Return whether few values are normalised as torch does: in training, or without training statistics."""
        return self.running_mean is None or self._tracks()

    def commit(self, centre: Tensor, variance: Tensor) -> None:
        """Commit one batch's statistics to the moving average of the policy ``ema``. Only this writes it.

        Non-finite statistics, from a batch with no finite image, change nothing.
        """
        if self._policy.reference != "ema":
            raise ValueError(
                f"only the policy 'ema' has statistics to commit to; this layer's policy is {self.policy}."
            )
        if centre.shape != (self.num_features,) or variance.shape != (self.num_features,):
            raise ValueError(
                f"expected a centre and a variance per channel, ({self.num_features},) each; got {tuple(centre.shape)}"
                f" and {tuple(variance.shape)}."
            )
        gather_statistics({self: (centre, variance)})()

    def reset(self) -> None:
        """Reset the moving average: the policy ``ema`` starts again at the source statistics."""
        self.ema_mean = self.ema_var = None

    def _tracks(self) -> bool:
        """Return whether a forward pass updates the source statistics, as real training does."""
        tracks = self.training and self.track_running_stats and self._policy.name == "batch"
        return tracks and self.running_mean is not None

    def _count_batch(self, counts: bool | Tensor = True) -> float | Tensor:
        """Count a batch, unless ``counts`` is false, and return its weight in the source statistics."""
        if self.num_batches_tracked is None:
            return 0.0 if self.momentum is None else self.momentum
        self.num_batches_tracked.add_(counts)
        return 1.0 / self.num_batches_tracked.clamp(min=1) if self.momentum is None else self.momentum

    def _track(self, input: Tensor, batch: Normalised | KernelNormalised) -> None:
        """Update the source statistics as torch does in training, with the unbiased variance."""
        assert self.running_mean is not None
        assert self.running_var is not None
        with torch.no_grad():
            images = input.shape[0] if batch.counted is None else batch.counted
            count = torch.as_tensor(images * math.prod(input.shape[2:]), device=input.device)
            weight = self._count_batch(count > 0)
            unbiased = batch.batch_variance * count / (count - 1).clamp(min=1)
            for running, new in ((self.running_mean, batch.batch_centre), (self.running_var, unbiased)):
                updated = weight * new + (1.0 - weight) * running
                running.copy_(torch.where((count == 0) | updated.isnan(), running, updated))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        if f"{prefix}running_mean" in state_dict:
            self.reset()  # the moving average starts from the new source statistics


Layer = TypeVar("Layer", bound=RunningStatistics)


def gather_statistics(statistics: Mapping[Layer, tuple[Tensor, Tensor]]) -> Callable[..., None]:
    """Prepare to commit the statistics of many layers at once, in a few operations, and return the function that does.

    The statistics are gathered now, while a GPU is still busy with what the host will wait for next. The returned
    function commits them to the moving averages: by the policy that it is given, or else by each layer's own.
    """
    groups: dict[tuple[Any, ...], list[Layer]] = {}
    for layer, (centre, _) in statistics.items():
        dtype = layer._reference_statistics()[0].dtype
        key = (layer._policy, layer._estimator.prior, dtype, centre.dtype, centre.device)
        groups.setdefault(key, []).append(layer)
    parts = []
    for (own, prior, dtype, *_), layers in groups.items():
        with torch.no_grad():
            new = _stack([statistics[layer] for layer in layers])
            old = _stack([layer._reference_statistics() for layer in layers]).to(new.dtype)
            finite = new.isfinite().all(dim=0)
            if prior:
                source = _stack([(layer.running_mean, layer.running_var) for layer in layers])  # type: ignore[misc]
                new = (1.0 - prior) * new + prior * source.to(new.dtype)
        averages = [layer._buffers["ema_mean"] for layer in layers]
        parts.append((layers, averages, own, dtype, new, old, finite))

    def commit(policy: Policy | None = None) -> None:
        for layers, averages, own, dtype, new, old, finite in parts:
            weight = (policy or own).weight
            with torch.no_grad():
                if any(layer._buffers["ema_mean"] is not a for layer, a in zip(layers, averages, strict=True)):
                    # Other statistics were committed after these were gathered.
                    old = _stack([layer._reference_statistics() for layer in layers]).to(new.dtype)
                mixed = torch.where(finite, weight * new + (1.0 - weight) * old, old).to(dtype)
            sizes = [layer.num_features for layer in layers]
            # Copies, not views, so that layers share no memory. torch's type stubs omit what this returns.
            split: Any = torch.split_with_sizes_copy
            for layer, mean, var in zip(layers, *(split(row, sizes) for row in mixed), strict=True):
                layer._buffers["ema_mean"], layer._buffers["ema_var"] = mean, var

    return commit


def _stack(statistics: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Return two rows: all centres, and all variances."""
    return torch.cat([s for pair in zip(*statistics, strict=True) for s in pair]).view(2, -1)
