"""Malicious images among benign ones, without a gradient for the latter.

Which images are malicious is data: nothing here waits for a GPU, and positions can change under a recorded step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

SKIPS = True
"""Whether a GPU is spared the first convolution's gradient for benign images."""

PER_IMAGE = frozenset(f"{name}Backward0" for name in ("Add", "Sub", "Mul", "Div", "ToCopy", "Clone", "Alias"))
"""Steps from images to the first convolution that, with one differentiable input, keep every image to itself."""


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

    def put(self, some: Tensor, among: Tensor | None = None) -> Tensor:
        """A batch with ``some`` at these places, and ``among``, or zeros, at the others."""
        full = some[self.slots]
        mask = self.benign.view(-1, *[1] * (some.dim() - 1))
        if among is None:
            return torch.where(mask, 0.0, full)
        return torch.where(mask, among, full, out=torch.empty_like(among))  # which keeps channels_last


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


# --- sparing a GPU what nobody asks for -------------------------------------------------------------------------------


def sparing(model: torch.nn.Module, images: Tensor, where: Places) -> AbstractContextManager[Any]:
    """A context in which the first convolution computes no gradient for benign images, where that is worth it."""
    compiled = any(getattr(m, "_compiled_call_impl", None) or hasattr(m, "_orig_mod") for m in model.modules())
    if not SKIPS or not images.is_cuda or compiled or torch.is_autocast_enabled("cuda"):
        return nullcontext()
    return _Sparing(where)


class _Sparing(TorchFunctionMode):
    def __init__(self, where: Places) -> None:
        super().__init__()
        self.where, self.done = where, False

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.conv2d and not self.done:
            self.done = True
            if not kwargs and _applies(*args):
                return _Convolved.apply(args[0], args[1:], *self.where)  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


def _applies(x: Tensor, weight: Tensor, bias: Tensor | None = None, *options: Any) -> bool:
    """Whether this convolution sees each image by itself, and is differentiated for its input alone."""
    others = weight.requires_grad or (bias is not None and bias.requires_grad)
    if len(options) != 4 or isinstance(options[1], str) or others or not torch.is_grad_enabled():
        return False
    node = x.grad_fn
    while node is not None and node.name() in PER_IMAGE:
        before = [function for function, _ in node.next_functions if function is not None]
        node = before[0] if len(before) == 1 else None
    return node is not None and node.name() == f"{_Inserted.__name__}Backward"


class _Convolved(Function):
    """A convolution whose input gradient is zero for benign images."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, options: tuple[Any, ...], *where: Tensor) -> Tensor:
        weight, _, *ctx.options = options
        ctx.save_for_backward(x, weight, *where)
        return torch.conv2d(x, *options)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight, *where = ctx.saved_tensors
        found = Places(*where)
        stride, padding, dilation, groups = ctx.options
        some, like = (t[found.places] for t in (grads[0], x))  # which keeps channels_last
        form = torch.channels_last if _last(weight) or _last(x) else torch.contiguous_format
        slope = torch.ops.aten.convolution_backward(
            some.contiguous(memory_format=form), like.contiguous(memory_format=form), weight, None,
            _pair(stride), _pair(padding), _pair(dilation), False, [0, 0], groups, [True, False, False],
        )[0]  # fmt: skip
        return found.put(slope), None, None, None, None


def _pair(value: Any) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)


def _last(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
