"""The defence as functions: estimate a batch's statistics, normalise with them.

``statistics`` and ``normalise`` are the two halves of a robust BatchNorm; ``robust_norm`` is both. Non-finite values
are dealt with here, once, for every estimator: an image that has a NaN or an infinity is *isolated*, which means that
it takes no part in the statistics, that its own output is NaN, and that no gradient enters or leaves it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from . import estimators, gradients, kernels
from ._errors import unknown_name
from .estimators import Estimator

__all__ = ["normalise", "robust_norm", "statistics"]

NONFINITE = ("isolate", "propagate")


def statistics(
    x: Tensor,
    estimator: str | Estimator = "median",
    *,
    valid: Tensor | None = None,
    nonfinite: str | None = None,
) -> tuple[Tensor, Tensor]:
    """The centre and the variance of each channel of ``x``.

    Args:
        x: ``(B, C, *)``, any rank from 2 on, any floating dtype.
        estimator: a name from ``medbn.estimators.available()``, or an Estimator.
        valid: a ``(B,)`` boolean mask of the images that count; None for all.
        nonfinite: ``"isolate"`` leaves images with NaN or ±Inf out, ``"propagate"`` lets them through as torch does;
            None is ``"isolate"`` for robust estimators and ``"propagate"`` for ``mean``.

    Returns:
        Two ``(C,)`` tensors in float32 (float64 for float64 input), differentiable. NaN when no image counts.

    >>> x = torch.tensor([[1.0], [2.0], [3.0], [1e9]])
    >>> statistics(x, "median")[0], statistics(x, "mean")[0]
    (tensor([2.]), tensor([2.5000e+08]))
    """
    batch = examine(x, _of_batch(estimator), valid, nonfinite)
    return batch.centre, batch.variance


def normalise(
    x: Tensor,
    centre: Tensor,
    variance: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Equation 1: ``weight · (x − centre) / √(variance + eps) + bias``, in the dtype and memory format of ``x``.

    Eager values come from torch's BatchNorm kernel, and are as accurate as that.
    """
    _check_kind(x)
    dtype = kernels.working_dtype(x)
    return kernels.normalise(x, centre.to(dtype), variance.to(dtype), weight, bias, eps)


def robust_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    estimator: str | Estimator = "median",
    eps: float = 1e-5,
    *,
    valid: Tensor | None = None,
    nonfinite: str | None = None,
) -> Tensor:
    """Normalise ``x`` with its own statistics: what ``F.batch_norm(training=True)`` does, with any estimator.

    >>> x = torch.randn(8, 3, 5, 5)
    >>> plain = torch.nn.functional.batch_norm(x, None, None, training=True)
    >>> torch.allclose(robust_norm(x, estimator="mean"), plain, atol=1e-5)
    True
    """
    estimator = _of_batch(estimator)
    _check_input(x)
    if valid is None and is_batch_norm(x, estimator, nonfinite):
        return F.batch_norm(x, None, None, weight, bias, True, 0.0, eps)
    if valid is None:
        fast = fused(x, weight, bias, estimator, eps, nonfinite)
        if fast is not None:
            return fast.y
    batch = examine(x, estimator, valid, nonfinite)
    return batch.mark(normalise(batch.x, batch.centre, batch.variance, weight, bias, eps))


def fused(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    estimator: Estimator,
    eps: float,
    nonfinite: str | None = None,
    *,
    share: float = 1.0,
    held: tuple[Tensor, Tensor] | None = None,
    backward: Estimator | None = None,
) -> kernels.Fused | None:
    """Estimate and normalise at once, where a fast path can; None where it cannot.

    ``share`` and ``held`` mix the batch's statistics with held ones, which also stand in where no image is finite.
    """
    known = estimators.builtin(estimator) and isolates(estimator, nonfinite)
    kind = getattr(estimator.function, "__name__", "")
    softness = gradients.softness(backward, kind)
    plain = backward is None or backward.function is estimators.mean or softness is not None
    if not known or not plain or any(s.requires_grad for s in held or ()):
        return None

    def again(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        batch = examine(x, estimator, None, nonfinite, backward)
        centre, variance = batch.centre, batch.variance
        if held is not None:
            centre, variance = kernels.mix((centre, variance), held, share, batch.counted)
        return batch.mark(normalise(batch.x, centre, variance, weight, bias, eps))

    gradient = "own" if backward is None else "mean" if softness is None else "smooth"
    spec = kernels.Spec(kind, share, eps, gradient, softness or 0.0)
    return kernels.norm(x, weight, bias, held, spec, again)


def is_batch_norm(x: Tensor, estimator: Estimator, nonfinite: str | None) -> bool:
    """Whether torch's own kernel computes exactly this; it refuses a single value per channel."""
    plain = estimator.function is estimators.mean and not isolates(estimator, nonfinite)
    return plain and x.numel() > x.shape[1]


class Batch(NamedTuple):
    """A batch and what an estimator made of it."""

    x: Tensor
    """The input; isolated images are zero."""
    centre: Tensor
    variance: Tensor
    finite: Tensor | None
    """``(B,)`` mask of the images that are not isolated; None when none is."""
    counted: Tensor | None
    """How many images the statistics come from; None for all of them."""

    def mark(self, y: Tensor) -> Tensor:
        """Make the output of isolated images NaN, and let no gradient into them."""
        return y if self.finite is None else torch.where(_per_image(self.finite, y), y, torch.nan)


def examine(
    x: Tensor,
    estimator: Estimator,
    valid: Tensor | None = None,
    nonfinite: str | None = None,
    backward: Estimator | None = None,
) -> Batch:
    """Isolate, then estimate. With ``backward``, values are the estimator's and gradients those of ``backward``."""
    _check_input(x)
    valid = _check_valid(valid, x)
    finite = None
    if isolates(estimator, nonfinite):
        x, finite = isolate(x)
        if finite is not None:
            valid = finite if valid is None else valid & finite
    elif valid is not None:
        x, finite = isolate(x, spare=valid)  # padding may hold anything
    if backward is None:
        centre, variance = estimator(x, valid)
    else:
        with torch.no_grad():
            known = kernels.statistics(x, estimator.function.__name__, valid) if estimators.builtin(estimator) else None
            values = known or estimator(x, valid)
        centre, variance = (kernels.substitute(v, g) for v, g in zip(values, backward(x, valid), strict=True))
    counted = None
    if valid is not None:
        counted = valid.sum()
        centre, variance = (s.masked_fill(counted == 0, torch.nan) for s in (centre, variance))
    return Batch(x, centre, variance, finite, counted)


def isolates(estimator: Estimator, nonfinite: str | None) -> bool:
    """Whether images with non-finite values are to be left out."""
    if nonfinite is None:
        return estimator.robust
    if nonfinite not in NONFINITE:
        raise unknown_name("nonfinite", nonfinite, NONFINITE)
    return nonfinite == "isolate"


def isolate(x: Tensor, spare: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Zero every image that has a non-finite value; the mask of the others, or None if there is nothing to do.

    Images that ``spare`` marks are left as they are.
    """
    values, axes = x.detach(), list(range(1, x.dim()))
    finite = values.amax(axes).isfinite() & values.amin(axes).isfinite()
    if spare is not None:
        finite = finite | spare
    if _all_known_true(finite):
        return x, None
    # Not masked_fill, which would make channels_last contiguous.
    return torch.where(_per_image(finite, x), x, 0.0), finite


def _of_batch(estimator: str | Estimator) -> Estimator:
    """An estimator that needs nothing but a batch."""
    found = estimators.get(estimator)
    if found.prior:
        raise ValueError(f"{found.name!r} mixes with a layer's training statistics, and there is no layer here.")
    return found


def _per_image(mask: Tensor, x: Tensor) -> Tensor:
    return mask.view(-1, *[1] * (x.dim() - 1))


def _all_known_true(mask: Tensor) -> bool:
    """Whether all are true, where that can be read without making a GPU wait or a traced program depend on it."""
    return mask.device.type == "cpu" and type(mask) is Tensor and not kernels.traced() and bool(mask.all())


def _check_input(x: Tensor) -> None:
    _check_kind(x)
    if 0 in x.shape:
        raise ValueError(f"cannot take statistics of an empty batch: input has shape {tuple(x.shape)}.")


def _check_kind(x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"expected a tensor (B, C, *), got {type(x).__name__}.")
    if x.dim() < 2:
        raise ValueError(f"expected input (B, C, *) of at least 2 dimensions, got shape {tuple(x.shape)}.")
    if not x.is_floating_point():
        raise TypeError(f"expected floating point input, got {x.dtype}; convert it first, for example with .float().")


def _check_valid(valid: Tensor | None, x: Tensor) -> Tensor | None:
    if valid is None:
        return None
    check_mask(valid, x.shape[0])
    return None if _all_known_true(valid) else valid


def check_mask(valid: Tensor, images: int) -> None:
    """Refuse what is no mask over images."""
    if not isinstance(valid, Tensor):
        raise TypeError(f"valid must be a boolean tensor with one entry per image, got a {type(valid).__name__}.")
    if valid.dtype != torch.bool or valid.shape != (images,):
        raise ValueError(
            f"valid must be a boolean mask with one entry per image, ({images},);"
            f" got {valid.dtype} of shape {tuple(valid.shape)}."
        )
