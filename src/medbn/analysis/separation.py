"""How far malicious and benign images are apart in feature space: silhouettes, and principal components."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

PERMUTATIONS = 1000
"""Random labellings of the images, with which a silhouette is compared."""

COVERAGE = 0.95
"""Share of the random labellings whose silhouettes lie within the interval."""


class Separation(NamedTuple):
    """The silhouette of malicious against benign images, and what it is for labels that mean nothing."""

    silhouette: float
    """From −1 to 1; 0 where an image is as near to the other group as to its own."""
    low: float
    """The interval of the silhouettes of random labellings with as many malicious images."""
    high: float

    @property
    def separate(self) -> bool:
        """Whether the groups are further apart than random ones."""
        return self.silhouette > self.high


def separation(features: Tensor, malicious: Tensor, seed: int = 0, permutations: int = PERMUTATIONS) -> Separation:
    """Return the silhouette of malicious against benign images, with its permutation interval.

    Args:
        features: ``(B, *)``, one point per image; distances are Euclidean.
        malicious: ``(B,)`` mask.
        seed: of the permutations.
        permutations: how many random labellings the interval is made of.
    """
    distances = pairwise_distances(features)
    malicious = malicious.to(distances.device)
    generator = torch.Generator().manual_seed(seed)
    orders = torch.rand(permutations, len(malicious), generator=generator).argsort(1).to(distances.device)
    values = silhouettes(distances, torch.cat([malicious.unsqueeze(0), malicious[orders]]))
    tail = (1 - COVERAGE) / 2
    low, high = torch.quantile(values[1:], torch.tensor([tail, 1 - tail], dtype=values.dtype, device=values.device))
    return Separation(values[0].item(), low.item(), high.item())


def silhouettes(distances: Tensor, groups: Tensor) -> Tensor:
    """Return the mean silhouette of each of several divisions of the same points into two groups.

    A point's silhouette is (b − a) / max(a, b), where a is its mean distance to the other points of its group and b the
    one to the points of the other group; 0 for the only point of a group (Rousseeuw, 1987).

    Args:
        distances: ``(B, B)``.
        groups: ``(N, B)`` masks, each with points on both sides.
    """
    inside = groups.to(distances.dtype)
    sizes = torch.stack([inside.sum(1), (1 - inside).sum(1)], dim=1)  # (N, 2): of the group, of the others
    sums = torch.stack([inside @ distances, (1 - inside) @ distances], dim=2)  # (N, B, 2)
    own = torch.where(groups, 0, 1).unsqueeze(2)
    own_size, other_size = (sizes.unsqueeze(1).expand_as(sums).gather(2, side).squeeze(2) for side in (own, 1 - own))
    a = sums.gather(2, own).squeeze(2) / (own_size - 1).clamp(min=1)
    b = sums.gather(2, 1 - own).squeeze(2) / other_size
    larger = torch.maximum(a, b)
    values = torch.where((own_size > 1) & (larger > 0), (b - a) / larger.clamp(min=1e-300), 0.0)
    return values.mean(1)


def pairwise_distances(features: Tensor) -> Tensor:
    """Return the ``(B, B)`` Euclidean distances between images in float64."""
    products = _gram(features)
    squares = products.diagonal()
    distances: Tensor = (squares.unsqueeze(0) + squares.unsqueeze(1) - 2 * products).clamp(min=0).sqrt()
    distances.fill_diagonal_(0)
    return distances


def principal_components(features: Tensor, count: int) -> Tensor:
    """Return the coordinates of the images along the first principal components, ``(B, count)`` or fewer.

    The sign of a component, which is arbitrary, is chosen so that its largest coordinate is positive.
    """
    values, vectors = torch.linalg.eigh(_gram(features))
    count = min(count, len(values) - 1)
    scores = vectors.flip(1)[:, :count] * values.flip(0)[:count].clamp(min=0).sqrt()
    largest = scores.gather(0, scores.abs().argmax(0, keepdim=True))
    signed: Tensor = scores * torch.where(largest < 0, -1.0, 1.0)
    return signed


def _gram(features: Tensor) -> Tensor:
    """Return the products of all pairs of images after their mean is subtracted; there are far more features."""
    points = features.detach().flatten(1).double()
    points = points - points.mean(0)
    products: Tensor = points @ points.T
    return products
