"""Where malicious images may be, valid images within ε of the clean ones, and where an attack starts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .._registry import Registry

Start = Callable[[Tensor, float, "torch.Generator | None"], Tensor]
"""From clean images, ε and a generator to the images before the first step; they are projected afterwards."""

STARTS: Registry[Start] = Registry("start")


@STARTS.register("grey")
def grey(clean: Tensor, epsilon: float, generator: torch.Generator | None) -> Tensor:
    """Return images of 0.5, as the code of DIA's and of MedBN's authors does."""
    return torch.full_like(clean, 0.5)


@STARTS.register("white")
def white(clean: Tensor, epsilon: float, generator: torch.Generator | None) -> Tensor:
    """Return images of 1."""
    return torch.ones_like(clean)


@STARTS.register("checkerboard")
def checkerboard(clean: Tensor, epsilon: float, generator: torch.Generator | None) -> Tensor:
    """Return images whose pixels alternate between 0 and 1: the strongest contrast there is."""
    rows, columns = (torch.arange(size, device=clean.device) for size in clean.shape[-2:])
    return ((rows.view(-1, 1) + columns) % 2).to(clean).expand(clean.shape).clone()


@STARTS.register("offset")
def offset(clean: Tensor, epsilon: float, generator: torch.Generator | None) -> Tensor:
    """Return x + 0.5, as both papers print it."""
    return clean + 0.5


@STARTS.register("clean")
def clean(clean: Tensor, epsilon: float, generator: torch.Generator | None) -> Tensor:
    """Return the clean images."""
    return clean.clone()


@STARTS.register("random")
def random(clean: Tensor, epsilon: float, generator: torch.Generator | None) -> Tensor:
    """Return images anywhere in the ball, uniformly."""
    # Drawn on the CPU, so that a seed gives the same images on every device.
    uniform = torch.rand(clean.shape, generator=generator, dtype=torch.float32).to(clean)
    return clean + epsilon * (2 * uniform - 1)


def project(moved: Tensor, clean: Tensor, epsilon: float) -> Tensor:
    """Return the closest valid images, in [0, 1], within ``epsilon`` of the clean ones in the maximum norm."""
    return torch.minimum(torch.maximum(moved, clean - epsilon), clean + epsilon).clamp(0.0, 1.0)
