"""Which kernels compute what: C on a CPU, Triton on a GPU, and the reference functions for everything else.

The kernels estimate, normalise and differentiate in as few passes over the activation as possible. Both give the exact
median, and the gradient in closed form: with y = w · (x − c) · r + b and r = 1/√(v + eps),

    dx = w · r · g  +  slope · (x − centre) + shift  +  a summand at the few elements that the medians are taken from.

The functions here take and return tensors without autograd; ``medbn._normalise`` makes a differentiable function of
them, and ``operators`` makes operators. What kernels cannot do (masks, other dtypes, other estimators, export, second
derivatives) is left to ``reference``.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

from .._errors import unknown_name
from . import c, reference, smooth, tracing, triton
from .per_image import view_per_image
from .saved import Activation, Saved, Spec

KERNELS = ("mean", "median", "mad", "mad_scaled", "image_median")
"""The statistics that a kernel computes: ``"mean"`` is torch's own BatchNorm, ``c`` and ``triton`` have the others."""
PATHS = ("auto", "reference", "c", "triton")


def selected(x: Tensor, estimator: str = "median") -> str:
    """Return what computes an estimator for this input: ``"c"``, ``"triton"`` or ``"reference"``.

    The environment variable ``MEDBN_KERNELS`` forces one of these; forcing one that cannot be used is an error.

    >>> selected(torch.zeros(2, 3, dtype=torch.float64))
    'reference'
    """
    forced = os.environ.get("MEDBN_KERNELS", "auto")
    if forced not in PATHS:
        raise unknown_name("MEDBN_KERNELS", forced, PATHS)
    if forced == "reference" or not _may_call_kernels() or type(x) not in (Tensor, torch.nn.Parameter):
        return "reference"
    path = "triton" if x.is_cuda else "c"
    kernels = triton if x.is_cuda else c
    usable = estimator in kernels.KERNELS and kernels.available() and kernels.supported(x)
    if not usable and forced == path and estimator in kernels.KERNELS:
        why = kernels.reason() or "unsupported"
        raise RuntimeError(f"MEDBN_KERNELS={forced} cannot be used for {x.dtype} on {x.device}: {why}.")
    return path if usable and forced in ("auto", path) else "reference"


def _may_call_kernels() -> bool:
    """Return whether kernels may be called: directly, or as operators of a program that is compiled, not exported."""
    if not torch.compiler.is_compiling():
        return not tracing.transformed()
    # Older versions of torch cannot tell whether a program is compiled or exported.
    return _KNOWS_EXPORT and not _exporting() and not _transformed()


_KNOWS_EXPORT = hasattr(torch.compiler, "is_exporting")


def _transformed() -> bool:
    return tracing.transformed()


def _exporting() -> bool:
    # Called from code that torch.compile traces, this would always be true before torch 2.13.
    return torch.compiler.is_exporting()


# torch.compile calls these once and keeps the result; see kernels.c.library.
_exporting._dynamo_marked_constant = True  # type: ignore[attr-defined]
_transformed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running: tuple[Tensor, Tensor] | None, spec: Spec
) -> tuple[Tensor, Saved]:
    """Normalise ``x``, for which ``selected`` returns a kernel; return the output and what is saved for backward.

    No results have gradients.
    """
    if x.is_cuda:
        return triton.forward(x, weight, bias, running, spec)
    with torch.no_grad():
        return c.forward(x.detach(), _detach(weight), _detach(bias), running, spec)


def backward(g: Tensor, x: Tensor, weight: Tensor | None, saved: Saved, spec: Spec) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of input, weight and bias; the last two in float32."""
    if spec.backward == "smooth":
        return smooth.backward(g, x.detach(), _detach(weight), saved, spec)
    if x.is_cuda:
        return triton.backward(g, x, weight, saved, spec)
    return c.backward(g, x.detach(), _detach(weight), saved, spec)


def activates(x: Tensor, residual: Tensor | None, kernel: str) -> bool:
    """Return whether one kernel normalises ``x``, adds the residual if there is one, and applies a ReLU.

    Triton's do; elsewhere the ReLU is an operation of its own.
    """
    if residual is not None:
        if type(residual) not in (Tensor, torch.nn.Parameter) or residual.shape != x.shape:
            return False
        if residual.dtype != x.dtype or residual.device != x.device:
            return False
    return not torch.compiler.is_compiling() and selected(x, kernel) == "triton"


def activated_forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running: tuple[Tensor, Tensor] | None,
    spec: Spec,
    activation: Activation,
) -> tuple[Tensor, Saved]:
    """Return the same as ``forward``, activated, where ``activates`` returns true."""
    return triton.forward(x, weight, bias, running, spec, activation)


def activated_backward(
    g: Tensor, y: Tensor, x: Tensor, weight: Tensor | None, saved: Saved, spec: Spec, residual: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the gradients of input, weight, bias and, if there was a ``residual``, residual.

    ``y`` is the output of ``activated_forward``. The gradients of weight and bias are in float32.
    """
    if spec.backward == "smooth":
        masked = torch.ops.aten.threshold_backward(g, y, 0)
        return *backward(masked, x, weight, saved, spec), masked if residual else None
    return triton.activated_backward(g, y, x, weight, saved, spec, residual)


def _detach(t: Tensor | None) -> Tensor | None:
    return None if t is None else t.detach()


def statistics(x: Tensor, kernel: str, valid: Tensor | None = None) -> tuple[Tensor, Tensor] | None:
    """Return a centre and a variance per channel, without gradients; None where no kernel can compute them."""
    if kernel not in (triton if x.is_cuda else c).KERNELS:
        return None
    if valid is not None:  # kernels leave out images that are not finite
        x = torch.where(view_per_image(valid, x), x, torch.nan)
    if torch.compiler.is_compiling() or selected(x, kernel) == "reference":
        return None
    return triton.statistics(x, kernel) if x.is_cuda else c.statistics(x, kernel)


def median_statistics(x: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the median of each channel and the mean squared deviation from it, without gradients."""
    result = statistics(x, "median", valid)
    if result is not None:
        return result
    centre = reference.lower_median(x, valid)
    return centre, reference.square_deviation(x, centre, valid)
