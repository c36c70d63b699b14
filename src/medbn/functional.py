"""The defence as functions: estimate a batch's statistics, normalise with them.

``statistics`` and ``normalise`` are the two halves of a robust BatchNorm; ``robust_norm`` is both.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from . import estimators, kernels
from ._estimate import estimate_batch
from ._isolate import check_activation, check_input
from ._normalise import is_batch_norm, normalise_batch
from .estimators import Estimator

__all__ = ["normalise", "robust_norm", "statistics"]


def statistics(
    x: Tensor,
    estimator: str | Estimator = "median",
    *,
    valid: Tensor | None = None,
    nonfinite: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the centre and the variance of each channel of ``x``.

    Args:
        x: ``(B, C, *)``, any rank from 2 on, any floating dtype.
        estimator: a name from ``medbn.estimators.available()``, or an Estimator.
        valid: a ``(B,)`` boolean mask of the images to use; None for all.
        nonfinite: ``"isolate"`` leaves images with NaN or ±Inf out, ``"propagate"`` uses them as torch does; None is
            ``"isolate"`` for robust estimators and ``"propagate"`` for ``mean``.

    Returns:
        Two ``(C,)`` tensors in float32 (float64 for float64 input), differentiable. NaN if no image is left.

    >>> import torch
    >>> x = torch.tensor([[1.0], [2.0], [3.0], [1e9]])
    >>> statistics(x, "median")[0], statistics(x, "mean")[0]
    (tensor([2.]), tensor([2.5000e+08]))
    """
    batch = estimate_batch(x, _without_prior(estimator), valid, nonfinite)
    return batch.centre, batch.variance


def normalise(
    x: Tensor,
    centre: Tensor,
    variance: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Return ``weight · (x − centre) / √(variance + eps) + bias`` (eq. 1), in the dtype and memory format of ``x``.

    In eager mode torch's BatchNorm kernel computes it, with that kernel's accuracy.
    """
    check_activation(x)
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
    """Normalise ``x`` with its own statistics, as ``F.batch_norm(training=True)`` does, with any estimator.

    >>> import torch
    >>> x = torch.randn(8, 3, 5, 5)
    >>> plain = torch.nn.functional.batch_norm(x, None, None, training=True)
    >>> torch.allclose(robust_norm(x, estimator="mean"), plain, atol=1e-5)
    True
    """
    estimator = _without_prior(estimator)
    check_input(x)
    if valid is None and is_batch_norm(x, estimator, nonfinite):
        return F.batch_norm(x, None, None, weight, bias, True, 0.0, eps)
    return normalise_batch(x, weight, bias, estimator, eps, nonfinite, valid=valid).y


def _without_prior(estimator: str | Estimator) -> Estimator:
    """Return the estimator; raise an error if it needs training statistics."""
    estimator = estimators.get(estimator)
    if estimator.prior:
        raise ValueError(f"{estimator.name!r} mixes with a layer's training statistics, and a function has none.")
    return estimator
