"""Where malicious images may be: valid images within ε of what they were, and where an attack starts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

STARTS: dict[str, Callable[[Tensor, float, torch.Generator | None], Tensor]] = {
    "grey": lambda x, epsilon, generator: torch.full_like(x, 0.5),
    "offset": lambda x, epsilon, generator: x + 0.5,
    "clean": lambda x, epsilon, generator: x.clone(),
    "random": lambda x, epsilon, generator: x + epsilon * (2 * _uniform(x, generator) - 1),
}
"""The 0.5 image, as DIA's authors and MedBN's have it; x + 0.5, as their papers print it; x; anywhere in the ball."""


def project(moved: Tensor, clean: Tensor, epsilon: float) -> Tensor:
    """Into the ball of radius ``epsilon`` in the maximum norm around ``clean``, and into [0, 1]."""
    return torch.minimum(torch.maximum(moved, clean - epsilon), clean + epsilon).clamp(0.0, 1.0)


def _uniform(x: Tensor, generator: torch.Generator | None) -> Tensor:
    # On the CPU, so that a seed means the same images on every device.
    return torch.rand(x.shape, generator=generator, dtype=torch.float32).to(x)
