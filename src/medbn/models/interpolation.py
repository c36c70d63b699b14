"""Bilinear interpolation whose gradient is the same in every run."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def resize(x: Tensor, height: int, width: int) -> Tensor:
    """Return images or activations ``(B, C, H, W)``, interpolated bilinearly to another size.

    The result is that of ``torch.nn.functional.interpolate`` without aligned corners, computed as two matrix products:
    torch's own gradient on GPUs adds in an order that changes from run to run.
    """
    for axis, size in ((2, height), (3, width)):
        if x.shape[axis] != size:
            weights = _interpolation_weights(x.shape[axis], size, x)
            x = (x.transpose(2, 3) @ weights).transpose(2, 3) if axis == 2 else x @ weights
    return x


def _interpolation_weights(old: int, new: int, x: Tensor) -> Tensor:
    """Return the matrix ``(old, new)`` that interpolates linearly, in the dtype and on the device of ``x``."""
    identity = torch.eye(old, dtype=torch.float32, device=x.device)
    return F.interpolate(identity[None], size=new, mode="linear", align_corners=False)[0].to(x.dtype)
