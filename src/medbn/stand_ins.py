"""Other gradients for a layer's statistics: what an attacker uses where the true gradient tells nothing.

A median passes its gradient to one single element, so a plain gradient attack sees almost nothing of what its images do
to the statistics. Values stay true in all of these; only the backward pass looks elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from . import estimators, kernels
from ._names import unknown
from .estimators import MAD_TO_SIGMA, Estimator

StandIn = Callable[[Estimator], Estimator]
GRADIENTS = ("exact", "straight_through", "smooth")


def get(gradient: str, temperature: float = 0.5) -> StandIn | None:
    """The stand-in of that name, as a function of the estimator it stands in for; None for the exact gradient.

    Args:
        gradient: ``"exact"``; ``"straight_through"``, the gradient of the mean's statistics; ``"smooth"``, that of a
            soft quantile.
        temperature: how soft, in standard deviations. Towards 0 the gradient goes to the selected element alone,
            towards infinity it is the mean's.
    """
    if gradient not in GRADIENTS:
        raise unknown("gradient", gradient, GRADIENTS)
    if temperature <= 0:
        raise ValueError(f"temperature is a positive number of standard deviations, got {temperature!r}.")
    if gradient == "exact":
        return None
    if gradient == "straight_through":
        return lambda estimator: estimators.get("mean")
    return lambda estimator: smooth(estimator, temperature)


def smooth(estimator: Estimator, temperature: float = 0.5) -> Estimator:
    """An estimator whose medians pass their gradient to all values near them, by a Gaussian weight.

    Known estimators keep their form. One that a user registered is taken for a median with its mean squared deviation:
    its own gradient is the exact one, and this is what else an attacker would try.
    """
    forms = {"mad": _mad, "mad_scaled": _mad_scaled, "image_median": _image_median}
    if estimator.name == "mean":
        return estimator
    form = forms.get(estimator.name, _median)
    return Estimator(f"smooth {estimator.name}", lambda x, valid: form(x, valid, temperature))


def _median(x: Tensor, valid: Tensor | None, temperature: float) -> tuple[Tensor, Tensor]:
    centre = _soft_median(x, valid, temperature)
    return centre, kernels.square_deviation(x, centre, valid)


def _mad(x: Tensor, valid: Tensor | None, temperature: float) -> tuple[Tensor, Tensor]:
    centre = _soft_median(x, valid, temperature)
    away = (x.to(centre.dtype) - _per_channel(centre, x)).abs()
    return centre, _soft_median(away, valid, temperature).square()


def _mad_scaled(x: Tensor, valid: Tensor | None, temperature: float) -> tuple[Tensor, Tensor]:
    centre, variance = _mad(x, valid, temperature)
    return centre, MAD_TO_SIGMA**2 * variance


def _image_median(x: Tensor, valid: Tensor | None, temperature: float) -> tuple[Tensor, Tensor]:
    means, within = kernels.image_moments(x)
    centre = _soft_median(means, valid, temperature)
    between = MAD_TO_SIGMA * _soft_median((means - centre).abs(), valid, temperature)
    return centre, _soft_median(within, valid, temperature) + between.square()


def _soft_median(x: Tensor, valid: Tensor | None, temperature: float) -> Tensor:
    """A weighted mean of each channel, by nearness to its median; the weights are constants."""
    x = x.to(kernels.working_dtype(x))
    axes, tiny = [axis for axis in range(x.dim()) if axis != 1], torch.finfo(x.dtype).tiny
    with torch.no_grad():
        middle, variance = kernels.median_statistics(x.detach(), valid)
        scale = temperature * variance.sqrt() + tiny
        distance = (x - _per_channel(middle, x)) / _per_channel(scale, x)
        weights = torch.exp(-0.5 * distance.square())
        keep = weights.isfinite() if valid is None else weights.isfinite() & valid.view(-1, *[1] * (x.dim() - 1))
        weights = torch.where(keep, weights, 0.0)
        weights = weights / weights.sum(dim=axes, keepdim=True).clamp(min=tiny)
    return torch.where(weights > 0, weights * x, 0.0).sum(dim=axes)


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    return values.view(1, -1, *[1] * (x.dim() - 2))
