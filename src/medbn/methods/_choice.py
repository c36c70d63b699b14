"""The choice of ``past`` between its memories and the batch's own statistics, in each pass.

It is made on the device, in the first layer of a pass. The host learns of it after the pass, with the number of usable
images.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .. import kernels
from ..distributed import Group, gather_rows
from ..layers import RobustBatchNorm
from ._changes import SHARE, changed_share, image_features
from ._memories import Memories, Seen, source_statistics


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
        batch = torch.where(usable, centre, 0.0), torch.where(usable, variance, 0.0)
        old = list(self._remembered[:, self._slices[layer]].to(centre))
        if self._weights is not None:
            weight = self._weights.index_select(0, self._index).to(centre)
            new = kernels.mix(batch, source_statistics(layer), 1.0 - prior)
            old = [torch.where(usable, weight * n + (1.0 - weight) * o, o) for n, o in zip(new, old, strict=True)]
        own = kernels.mix(batch, source_statistics(layer), 1.0 - fallback)
        return torch.where(declared, own[0], old[0]), torch.where(declared, own[1], old[1])

    def _decide(self, x: Tensor, valid: Tensor | None, group: Group | None) -> Tensor:
        """Choose a memory for the batch, and return whether a change is declared because none fits."""
        tensors, count = self._tensors, self._settings.memories
        features = image_features(x).to(tensors["averages"])
        usable = features.isfinite().all(dim=1)
        usable = usable if valid is None else usable & valid.to(usable.device)
        if group is not None:
            features, usable = gather_rows(features, group), gather_rows(usable, group)
        medians = tensors.get("medians", features.new_zeros(count, features.shape[1]))
        kinds = features.shape[1] // x.shape[1]
        shares, enough = changed_share(features, medians, usable, tensors["tables"], kinds)
        changed = enough & ((shares > SHARE) | ~tensors["known"])
        current = tensors["current"]
        stays = ~changed.index_select(0, current)
        # To return is a claim of its own: a young memory has bounds so wide that nearly anything is within them.
        half = torch.full_like(tensors["tables"], 0.5 - self._settings.malicious)
        apart, _ = changed_share(features, medians, usable, half, kinds)
        fits = enough & tensors["known"] & ~changed & (apart <= SHARE)
        least, best = torch.where(fits, apart, torch.inf).min(dim=0, keepdim=True)
        self._index = torch.where(stays, current, best)
        self._remembered = tensors["averages"].index_select(0, self._index).squeeze(0)
        self._medians = kernels.middle_over_images(features, usable)
        self._spreads = kernels.middle_over_images((features - self._medians).abs(), usable)
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
            centre, variance = self._estimated.get(layer, (torch.full_like(like[0], torch.nan),) * 2)
            batch = centre.to(like), variance.to(like)
            mean, var = source_statistics(layer)
            source = mean.to(like), var.to(like)
            usual, first = (kernels.mix(batch, source, 1.0 - prior) for prior in self._priors(layer))
            for row, one, other in zip(rows, first, usual, strict=True):
                row.append(torch.where(declared, one, other))
        statistics = torch.stack([torch.cat(row) for row in rows])
        return Seen(statistics, self._medians.clone(), self._spreads.clone(), self._decision)
