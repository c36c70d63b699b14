"""Gradients: what a backward pass sees of a layer's statistics, for attacks on layers whose own gradient is useless.

A median passes its gradient to a single element, so a plain gradient attack sees almost nothing of how its images move
the statistics. Here statistics keep their values and get the gradient of another estimator, the *backward estimator*;
see ``medbn.backward_through``. A gradient is a function from a layer's estimator to its backward estimator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from . import estimators, kernels
from ._check_types import wrong_type
from ._registry import Registry
from .estimators import Estimator
from .kernels import MAD_TO_SIGMA

Gradient = Callable[[Estimator, float], Estimator]

_registry = Registry[Gradient]("gradient")
available = _registry.available
register = _registry.register
unregister = _registry.unregister


def get(gradient: str, temperature: float = 0.5) -> Callable[[Estimator], Estimator] | None:
    """Return a function from a layer's estimator to its backward estimator; None for ``"exact"``, which needs none.

    Args:
        gradient: ``"exact"``; ``"straight_through"``, the gradient of mean and variance; ``"smooth"``, that of a soft
            quantile; or what ``register(name)`` decorated, a function of an estimator and the temperature.
        temperature: the width of the soft quantile, in standard deviations. Towards 0 the gradient goes to the selected
            element alone, towards infinity it is the mean's.
    """
    function = _registry.get(gradient)
    if wrong_type(temperature, "float") or temperature <= 0:
        raise ValueError(f"temperature is a positive number of standard deviations, got {temperature!r}.")
    return None if function is exact else lambda estimator: function(estimator, temperature)


def get_function(gradient: str) -> Gradient:
    """Return the function that is registered under a name."""
    return _registry.get(gradient)


@register("exact")
def exact(estimator: Estimator, temperature: float = 0.5) -> Estimator:
    """Return the estimator itself: its statistics keep their own gradient."""
    return estimator


@register("straight_through")
def straight_through(estimator: Estimator, temperature: float = 0.5) -> Estimator:
    """Return BatchNorm's estimator: the gradient is that of mean and variance."""
    return estimators.get("mean")


@register("smooth")
def smooth(estimator: Estimator, temperature: float = 0.5) -> Estimator:
    """Return an estimator of the same values, whose medians pass their gradient to all values near them.

    Estimators that a kernel computes keep their form. Any other is treated as a median with its mean squared deviation:
    its own gradient is ``"exact"``, and this is an alternative for an attacker.
    """
    if estimator.kernel == "mean":
        return estimator
    function = Smooth(estimator.kernel or "median", temperature)
    return Estimator(f"smooth {estimator.name}", function, kernel=function.kernel, temperature=temperature)


@dataclass(frozen=True)
class Smooth:
    """The function of a smooth estimator, in plain torch.

    The gradient of a median goes to each value with a Gaussian weight of its distance to the median, in units of the
    temperature times σ. σ is the root of the mean squared deviation from the median; for MADs, which a few huge values
    do not move, it is 1.4826 · MAD.
    """

    kernel: str
    """Which statistics: ``"median"``, ``"mad"``, ``"mad_scaled"`` or ``"image_median"``."""
    temperature: float

    def __call__(self, x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return a centre and a variance per channel."""
        if self.kernel == "image_median":
            return kernels.medians_over_images(x, lambda values: self._soft_median_over_images(values, valid))
        return self._median(x, valid) if self.kernel == "median" else self._mad(x, valid)

    def _median(self, x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            middle, variance = kernels.median_statistics(x.detach(), valid)
        centre = kernels.soft_median(x, middle, variance.sqrt(), valid, self.temperature)
        return centre, kernels.square_deviation(x, centre, valid)

    def _mad(self, x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            middle, _ = kernels.median_statistics(x.detach(), valid)
            mad, _ = kernels.median_statistics((x.detach() - kernels.view_per_channel(middle, x)).abs(), valid)
            sigma = MAD_TO_SIGMA * mad
        centre = kernels.soft_median(x, middle, sigma, valid, self.temperature)
        deviation = kernels.soft_median(
            (x - kernels.view_per_channel(centre, x)).abs(), mad, sigma, valid, self.temperature
        )
        return centre, (deviation if self.kernel == "mad" else MAD_TO_SIGMA * deviation).square()

    def _soft_median_over_images(self, values: Tensor, valid: Tensor | None) -> Tensor:
        with torch.no_grad():
            middle = kernels.middle_over_images(values.detach(), valid)
            sigma = kernels.square_deviation(values.detach(), middle, valid).sqrt()
        return kernels.soft_median(values, middle, sigma, valid, self.temperature)
