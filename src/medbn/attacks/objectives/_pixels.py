"""What objectives for pixels share: the draw of a pixel, and a loss per pixel. Neither waits for a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

_BITS = 0x7FFFFFFF
"""Hashes are of 31 bits, so that no product of two of them overflows."""


def draw_pixel(labels: Tensor, counts: Tensor, seed: int) -> Tensor:
    """Return the number of a pixel, row by row, drawn among those that count; 0 if none does.

    The draw depends on the seed and on the labels of the whole image alone. So it needs no state, it is the same for
    every attack, method and device, and a captured step draws anew for the labels that it is given.

    Args:
        labels: of one image, ``(H, W)``.
        counts: mask of the pixels that can be drawn.
        seed: other seeds draw other pixels.
    """
    numbers = torch.arange(labels.numel(), device=labels.device)
    content = ((labels.flatten() + 1) * (_hash(numbers) >> 8)).sum() & _BITS
    scores = _hash(numbers ^ _hash(content ^ (seed * 0x2545F491 & _BITS)))  # all different: _hash is a permutation
    return torch.where(counts.flatten(), scores, -1).argmax()


def _hash(x: Tensor) -> Tensor:
    """Return a permutation of the integers below 2³¹ that looks random."""
    for shift, factor in ((16, 0x45D9F3B), (15, 0x2C1B3C6D), (16, 0)):
        x = x ^ (x >> shift)
        x = x * factor & _BITS if factor else x
    return x


def cross_entropy_per_pixel(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each pixel, ``(B, H, W)``; where the label is no class, a number that means nothing.

    torch's own loss has no deterministic form for dense outputs on a GPU.
    """
    classes = torch.arange(logits.shape[1], device=logits.device).view(1, -1, 1, 1)
    own = torch.where(classes == labels.unsqueeze(1), logits, 0.0).sum(dim=1)
    return logits.logsumexp(dim=1) - own
