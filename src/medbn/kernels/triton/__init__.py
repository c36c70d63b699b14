"""The Triton kernels: float32, float16 and bfloat16 on a GPU, with the gradient in closed form.

``kernels.c`` has the same front door, and ``kernels.dispatch`` chooses between the two. The package ``triton`` is
imported when the first CUDA tensor comes: it takes long to import, and may be missing.
"""

from __future__ import annotations

import warnings
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ..saved import Activation, Saved, Spec

__all__ = ["KERNELS", "activated_backward", "available", "backward", "forward", "reason", "statistics", "supported"]

KERNELS = ("median", "mad", "mad_scaled", "image_median")
"""The estimators that are computed here."""
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def available() -> bool:
    """Return whether the package ``triton`` loads; where it does not, warn once."""
    return _load()[0] is not None


# torch.compile calls this once and keeps the result; see ``kernels.c.library``.
available._dynamo_marked_constant = True  # type: ignore[attr-defined]


def reason() -> str:
    """Return why the kernels are not available; empty when they are."""
    return _load()[1]


def supported(x: Tensor) -> bool:
    """Return whether ``forward`` takes ``x``: any strides, but no more images than the kernels hold in registers."""
    if x.dtype not in _DTYPES or x.dim() < 2:
        return False
    images, channels, *_ = x.shape
    return 0 < x.numel() < (2**31 - 1) * channels and images <= 4096


def forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running: tuple[Tensor, Tensor] | None,
    spec: Spec,
    activation: Activation | None = None,
) -> tuple[Tensor, Saved]:
    """Normalise ``x``, and activate it; return the output and what the backward pass needs."""
    result: tuple[Tensor, Saved] = _orchestration().forward(x, weight, bias, running, spec, activation)
    return result


def backward(g: Tensor, x: Tensor, weight: Tensor | None, saved: Saved, spec: Spec) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of input, weight and bias; the last two in float32."""
    result: tuple[Tensor, Tensor, Tensor] = _orchestration().backward(g, x, weight, saved, spec)
    return result


def activated_backward(
    g: Tensor, y: Tensor, x: Tensor, weight: Tensor | None, saved: Saved, spec: Spec, residual: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the gradients of input, weight, bias and, if there was a ``residual``, residual.

    ``y`` is the output behind the ReLU. The gradients of weight and bias are in float32.
    """
    result: tuple[Tensor, Tensor, Tensor, Tensor | None] = _orchestration().activated_backward(
        g, y, x, weight, saved, spec, residual
    )
    return result


def statistics(x: Tensor, kernel: str) -> tuple[Tensor, Tensor]:
    """Return the centre and the variance of each channel over the images that are finite."""
    result: tuple[Tensor, Tensor] = _orchestration().statistics(x, kernel)
    return result


@cache
def _load() -> tuple[ModuleType | None, str]:
    """Return the module that launches the kernels, or None and why it does not load."""
    try:
        from . import orchestration
    except Exception as error:  # of any kind: the reference path runs without Triton
        warnings.warn(f"Triton does not load ({error}); medbn's GPU kernels are off.", stacklevel=2)
        return None, f"Triton does not load: {error}"
    return orchestration, ""


def _orchestration() -> Any:
    return _load()[0]
