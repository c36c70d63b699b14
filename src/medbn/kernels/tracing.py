"""Whether a call is traced or differentiated, which decides between plain torch and autograd Functions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def traced() -> bool:
    """Return whether the call is traced or transformed: compile, export, jit.trace, torch.func or forward-mode AD.

    Then everything is plain, differentiable torch, and no value is read. An autograd Function would not help: a
    compiler decides itself what to save, older ones lose a Function's gradients, and an exported program may contain
    aten operators only.
    """
    return torch.compiler.is_compiling() or transformed()


def transformed() -> bool:
    """Return whether jit.trace, torch.func or forward-mode AD is active, inside a compiler or not."""
    return (
        torch._C._get_tracing_state() is not None
        or torch._C._are_functorch_transforms_active()
        or torch.autograd.forward_ad._current_level >= 0
    )


def needs_gradient(*tensors: Tensor | None) -> bool:
    """Return whether gradients or tangents of these tensors may be asked for."""
    if traced() and not torch.compiler.is_compiling():
        return True  # requires_grad says nothing about tangents and torch.func
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def needs_function(*tensors: Tensor | None) -> bool:
    """Return whether to use an autograd Function, which decides what is saved for backward."""
    return not traced() and needs_gradient(*tensors)


def apply(function: type[Function], *arguments: Any) -> Any:
    """Call a Function."""
    return function.apply(*arguments)  # type: ignore[no-untyped-call]
