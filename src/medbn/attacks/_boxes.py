"""What m malicious images of n can make of an estimator's centre and variance, given the benign activations.

Malicious values are arbitrary, so each statistic lies between two order statistics of the benign values: with all of
them below, and with all of them above. A mean has no bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..kernels import MAD_TO_SIGMA

UNBOUNDED = 1e3
"""Where nothing bounds a statistic: standard deviations of the benign values for a centre, and their square for a
variance."""


class Box(NamedTuple):
    """Limits of a layer's statistics, ``(C,)`` each. Those of the variance depend on the centre."""

    low: Tensor
    high: Tensor
    variance: Callable[[Tensor], tuple[Tensor, Tensor]]


def box_of(x: Tensor, malicious: int, kernel: str) -> Box:
    """Return the limits for benign activations ``(B, C, *)`` and a number of malicious images beside them.

    Args:
        x: of the benign images.
        malicious: how many other images are in the batch.
        kernel: ``"mean"``, ``"median"``, ``"mad"``, ``"mad_scaled"`` or ``"image_median"``.
    """
    planes = x.flatten(2) if x.dim() > 2 else x.unsqueeze(2)
    planes = planes.to(torch.promote_types(planes.dtype, torch.float32))
    values = planes.transpose(0, 1).flatten(1)  # (C, N)
    others = malicious * planes.shape[2]
    spread = values.detach().std(dim=1, correction=0).clamp(min=1e-6)
    if kernel == "image_median":
        return _image_box(planes, malicious, spread)
    far = UNBOUNDED * spread if malicious else 0.0 * spread
    if kernel == "mean":
        share = values.shape[1] / (values.shape[1] + others)
        low, high = values.mean(dim=1) - far, values.mean(dim=1) + far
    else:
        share = values.shape[1] / (values.shape[1] + others)
        low, high = between(values, others, far, lower=True)

    def variance(centre: Tensor) -> tuple[Tensor, Tensor]:
        distances = values - centre.unsqueeze(1)
        if kernel in ("mad", "mad_scaled"):
            factor = MAD_TO_SIGMA if kernel == "mad_scaled" else 1.0
            least, most = between(distances.abs(), others, far, lower=True)
            return (factor * least.clamp(min=0.0)).square(), (factor * most).square()
        least = distances.square().mean(dim=1) * share  # the malicious values all at the centre
        return least, least + (far.square() if malicious else 0.0)

    return Box(low, high, variance)


def _image_box(planes: Tensor, malicious: int, spread: Tensor) -> Box:
    means, within = planes.mean(dim=2).T, planes.var(dim=2, correction=0).T  # (C, B)
    far = UNBOUNDED * spread
    low, high = between(means, malicious, far)

    def variance(centre: Tensor) -> tuple[Tensor, Tensor]:
        inside = between(within, malicious, far.square())
        beside = between((means - centre.unsqueeze(1)).abs(), malicious, far)
        least, most = (
            w.clamp(min=0.0) + (MAD_TO_SIGMA * b.clamp(min=0.0)).square() for w, b in zip(inside, beside, strict=True)
        )
        return least, most

    return Box(low, high, variance)


def between(values: Tensor, others: int, far: Tensor, *, lower: bool = False) -> tuple[Tensor, Tensor]:
    """Return the least and the greatest median of each row with so many arbitrary values beside it.

    Args:
        values: ``(C, N)``.
        others: how many arbitrary values there are.
        far: what stands for a median without a bound, half of the values or more being arbitrary.
        lower: of an even number, whether the lower of the two middle values is the median, or their mean.
    """
    ordered = values.sort(dim=1).values
    total = values.shape[1] + others
    ranks = [(total - 1) // 2] if lower else [(total - 1) // 2, total // 2]

    def mean_at(shift: int) -> Tensor:
        picked = []
        for rank in ranks:
            place = rank - shift
            inside = ordered[:, min(max(place, 0), values.shape[1] - 1)]
            picked.append(inside - far if place < 0 else inside + far if place >= values.shape[1] else inside)
        return torch.stack(picked).mean(dim=0)

    return mean_at(others), mean_at(0)
