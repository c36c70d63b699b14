"""Insert malicious images into a batch; the gradient goes to them alone.

Which images are malicious is a tensor, so that nothing here waits for a GPU, and a captured step serves any positions.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function


def find_positions(benign: Tensor) -> tuple[Tensor, Tensor]:
    """Return the malicious images' indices, in order, and each image's number among them (0 for benign images)."""
    malicious = ~benign
    return malicious.nonzero().flatten(), (malicious.cumsum(0) - 1).clamp(min=0)


def insert(images: Tensor, malicious: Tensor, benign: Tensor, indices: Tensor, numbers: Tensor) -> Tensor:
    """Return the batch with its malicious images replaced, in the batch's type and memory format.

    Args:
        images: the batch.
        malicious: the new malicious images, which receive the gradient.
        benign: ``(B,)`` mask of the other images.
        indices: where the malicious images are.
        numbers: ``(B,)``: the number of each image among the malicious ones.
    """
    return cast(Tensor, _Insert.apply(malicious.to(images.dtype), images, benign, indices, numbers))  # type: ignore[no-untyped-call]


class _Insert(Function):
    @staticmethod
    def forward(
        ctx: Any, malicious: Tensor, images: Tensor, benign: Tensor, indices: Tensor, numbers: Tensor
    ) -> Tensor:
        ctx.save_for_backward(indices)
        mask = benign.view(-1, *[1] * (images.dim() - 1))
        return torch.where(mask, images, malicious[numbers], out=torch.empty_like(images))  # keeps channels_last

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (indices,) = ctx.saved_tensors
        return grads[0].index_select(0, indices), None, None, None, None
