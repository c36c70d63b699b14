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
import warnings
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from .._errors import unknown_name
from . import reference
from .c import binding, orchestration
from .reference import MAD_FACTORS
from .saved import Saved, Spec

PATHS = ("auto", "reference", "c", "triton")
KINDS = {"c": ("median", "image_median"), "triton": ("median", "mad", "mad_scaled", "image_median")}
# MADs are small, and what stands beside them is amplified: on a CPU, where the torch path is nearly as fast, padding
# would then change the adapted parameters in their third digit.


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
    able = estimator in KINDS[path] and (_gpu_takes(x) if x.is_cuda else _cpu_takes(x))
    if not able and forced in ("c", "triton") and estimator in KINDS[forced] and (forced == "triton") == x.is_cuda:
        why = binding.reason() if forced == "c" else "triton does not load"
        raise RuntimeError(
            f"MEDBN_KERNELS={forced} cannot be used for {x.dtype} on {x.device}: {why or 'unsupported'}."
        )
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


def _loads(path: str) -> bool:
    return binding.available() if path == "c" else _gpu() is not None


# torch.compile calls these and keeps the answer. torch.compiler.assume_constant_result does this too, but imports the
# whole compiler first, which takes longer than everything else here.
_exporting._dynamo_marked_constant = True  # type: ignore[attr-defined]
_transformed._dynamo_marked_constant = True  # type: ignore[attr-defined]
_loads._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _cpu_takes(x: Tensor) -> bool:
    if not _loads("c"):
        return False
    if not torch.compiler.is_compiling():
        return binding.supported(x)
    # The operator takes any strides.
    plain = x.device.type == "cpu" and x.layout is torch.strided and x.dtype is torch.float32
    return plain and x.dim() >= 2 and 0 < x.numel() < x.shape[1] * 2**31


def forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, held: tuple[Tensor, Tensor] | None, spec: Spec
) -> tuple[Tensor, Saved]:
    """Normalise ``x``, for which ``selected`` has a fast path."""
    return (_gpu_forward if x.is_cuda else orchestration.forward)(x, weight, bias, held, spec)


def backward(g: Tensor, x: Tensor, weight: Tensor | None, saved: Saved, spec: Spec) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of input, weight and bias; the last two in float32."""
    return (_gpu_backward if x.is_cuda else orchestration.backward)(g, x, weight, saved, spec)


def statistics(x: Tensor, kind: str, valid: Tensor | None = None) -> tuple[Tensor, Tensor] | None:
    """A centre and a variance per channel without gradients, on a fast path; None where only the reference path can."""
    if valid is not None:  # what is not finite takes no part
        x = torch.where(valid.view(-1, *[1] * (x.dim() - 1)), x, torch.nan)
    path = selected(x, kind)
    if path == "reference" or torch.compiler.is_compiling():
        return None
    if path == "c":
        return orchestration.statistics(x, kind)
    _, saved = _gpu_forward(x, None, None, None, Spec(kind, 1.0, 0.0))
    return saved.centre, saved.variance


def median_statistics(x: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The median of each channel and the mean squared deviation from it, without gradients, by whichever path."""
    known = statistics(x, "median", valid)
    if known is not None:
        return known
    centre = reference.lower_median(x, valid)
    return centre, reference.square_deviation(x, centre, valid)


# --- on a GPU ---------------------------------------------------------------------------------------------------------


@cache
def _gpu() -> ModuleType | None:
    try:
        from .triton import orchestration
    except Exception as error:  # whatever keeps Triton from loading, the reference path runs without it
        warnings.warn(f"Triton does not load ({error}); medbn's GPU kernels are off.", stacklevel=2)
        return None
    return orchestration


def _gpu_takes(x: Tensor) -> bool:
    if not _loads("triton"):
        return False
    from .triton import orchestration  # which torch.compile can follow, unlike _gpu()

    return bool(orchestration.supported(x))


def _gpu_forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, held: tuple[Tensor, Tensor] | None, spec: Spec
) -> tuple[Tensor, Saved]:
    module: Any = _gpu()
    given = (weight, bias, held, spec.batch_weight, spec.eps)
    dense = module.dense(x)
    means = slopes = withins = None
    if spec.kernel == "image_median":
        y, saved, used, scale, (means, chosen, slopes, withins) = module.image_forward(dense, *given)
    elif spec.kernel == "median":
        y, saved, used, scale = module.forward(dense, *given)
        chosen = saved.place
    else:
        y, saved, used, scale, (slopes, chosen) = module.mad_forward(dense, *given, MAD_FACTORS[spec.kernel])
    if dense is not x:
        y = torch.empty_like(x).copy_(y)
    kept = (used, scale, saved.deviation_sum, chosen, means, slopes, saved.finite, saved.finite_count, withins)
    return y, Saved(saved.centre, saved.variance, *kept)


def _gpu_backward(
    g: Tensor, x: Tensor, weight: Tensor | None, saved: Saved, spec: Spec
) -> tuple[Tensor, Tensor, Tensor]:
    module: Any = _gpu()
    place = saved.selected if saved.slopes is None else saved.selected[0]
    known = module.Statistics(
        saved.centre, saved.variance, saved.deviation_sum, place, saved.finite, saved.finite_count
    )
    dense = module.dense(x)
    given = (g, dense, weight, known, saved.used_centre, saved.inverse_std, spec.batch_weight)
    if saved.slopes is None or spec.backward == "mean":
        dx, d_weight, d_bias = module.backward(*given, spec.backward == "mean")
    elif saved.image_means is None:
        kept = module.Deviations(saved.slopes, saved.selected)
        dx, d_weight, d_bias = module.mad_backward(*given, kept, MAD_FACTORS[spec.kernel])
    else:
        kept = module.Images(saved.image_means, saved.selected, saved.slopes, saved.image_variances)
        dx, d_weight, d_bias = module.image_backward(*given, kept)
    return dx if dense is x else torch.empty_like(x).copy_(dx), d_weight, d_bias
