"""Malicious images among benign ones, without a gradient for the latter.

Which images are malicious is data: nothing here waits for a GPU, and positions can change under a recorded step.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd import Function


class Places(NamedTuple):
    """Which images of a batch are malicious."""

    benign: Tensor
    """``(B,)`` mask of the others."""
    places: Tensor
    """Where they are, in order."""
    slots: Tensor
    """``(B,)``: which of the malicious images this is; 0, for no reason, at a benign one."""

    @classmethod
    def of(cls, benign: Tensor) -> Places:
        """Find them."""
        return cls(benign, (~benign).nonzero().flatten(), ((~benign).cumsum(0) - 1).clamp(min=0))

    def put(self, some: Tensor, among: Tensor) -> Tensor:
        """A batch with ``some`` at these places, and ``among`` at the others."""
        mask = self.benign.view(-1, *[1] * (some.dim() - 1))
        return torch.where(mask, among, some[self.slots], out=torch.empty_like(among))  # which keeps channels_last


def inserted(images: Tensor, mine: Tensor, where: Places) -> Tensor:
    """The batch with the malicious images in it."""
    return cast(Tensor, _Inserted.apply(mine.to(images.dtype), images, *where))  # type: ignore[no-untyped-call]


class _Inserted(Function):
    @staticmethod
    def forward(ctx: Any, mine: Tensor, images: Tensor, *where: Tensor) -> Tensor:
        found = Places(*where)
        ctx.save_for_backward(found.places)
        return found.put(mine, images)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (places,) = ctx.saved_tensors
        return grads[0].index_select(0, places), None, None, None, None
