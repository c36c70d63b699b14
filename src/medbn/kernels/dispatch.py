"""The fast paths: statistics, normalisation and its gradient in as few passes over the activation as there can be.

One computation in two places: Triton on a GPU (``gpu``), C on a CPU (``native``). Both give the exact median, and the
gradient in closed form: with y = w · (x − c) · r + b, r = 1/√(v + eps), and statistics that a share of which is the
batch's,

    dx = w · r · g  +  slope · (x − centre) + shift  +  something at the few elements that the medians are made of.

Everything here is tensors in and tensors out, without autograd: ``ops`` makes operators and gradients of it. Whatever
these cannot do (masks, other dtypes, other estimators, export, a second derivative) the reference path does.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

from .._errors import unknown_name
from . import c, reference, smooth, triton
from .saved import Saved, Spec

KERNELS = ("mean", "median", "mad", "mad_scaled", "image_median")
"""The statistics that a kernel computes: ``"mean"`` is torch's own BatchNorm, ``c`` and ``triton`` have the others."""
PATHS = ("auto", "reference", "c", "triton")


def selected(x: Tensor, estimator: str = "median") -> str:
    """Which path a layer takes for this input: ``"c"``, ``"triton"`` or ``"reference"``.

    The environment variable ``MEDBN_KERNELS`` forces one of these; what is forced and cannot be done is an error.

    >>> selected(torch.zeros(2, 3, dtype=torch.float64))
    'reference'
    """
    forced = os.environ.get("MEDBN_KERNELS", "auto")
    if forced not in PATHS:
        raise unknown_name("MEDBN_KERNELS", forced, PATHS)
    if forced == "reference" or not _opaque() or type(x) not in (Tensor, torch.nn.Parameter):
        return "reference"
    path = "triton" if x.is_cuda else "c"
    kernels = triton if x.is_cuda else c
    able = estimator in kernels.KERNELS and kernels.available() and kernels.supported(x)
    if not able and forced == path and estimator in kernels.KERNELS:
        why = kernels.reason() or "unsupported"
        raise RuntimeError(f"MEDBN_KERNELS={forced} cannot be used for {x.dtype} on {x.device}: {why}.")
    return path if able and forced in ("auto", path) else "reference"


def _opaque() -> bool:
    """Whether kernels may be called: directly or, where a program is compiled but not exported, as operators."""
    if not torch.compiler.is_compiling():
        return not reference.transformed()
    # Older versions cannot tell compile from export.
    return _TELLS_EXPORT and not _exporting() and not _transformed()


_TELLS_EXPORT = hasattr(torch.compiler, "is_exporting")


def _transformed() -> bool:
    return reference.transformed()


def _exporting() -> bool:
    return torch.compiler.is_exporting()  # which, within what torch.compile follows, is always true before torch 2.13


# torch.compile calls these and keeps the answer; see kernels.c.binding.
_exporting._dynamo_marked_constant = True  # type: ignore[attr-defined]
_transformed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, held: tuple[Tensor, Tensor] | None, spec: Spec
) -> tuple[Tensor, Saved]:
    """Normalise ``x``, for which ``selected`` has a fast path."""
    return triton.forward(x, weight, bias, held, spec) if x.is_cuda else c.forward(x, weight, bias, held, spec)


def backward(g: Tensor, x: Tensor, weight: Tensor | None, saved: Saved, spec: Spec) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of input, weight and bias; the last two in float32."""
    if spec.backward == "smooth":
        return smooth.backward(g, x, weight, saved, spec)
    return triton.backward(g, x, weight, saved, spec) if x.is_cuda else c.backward(g, x, weight, saved, spec)


def statistics(x: Tensor, kernel: str, valid: Tensor | None = None) -> tuple[Tensor, Tensor] | None:
    """Return a centre and a variance per channel, without gradients; None where no kernel can compute them."""
    if kernel not in (triton if x.is_cuda else c).KERNELS:
        return None
    if valid is not None:  # kernels leave out images that are not finite
        x = torch.where(valid.view(-1, *[1] * (x.dim() - 1)), x, torch.nan)
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
