"""Other gradients for a layer's statistics: what an attacker uses where the true gradient tells nothing.

A median passes its gradient to one single element, so a plain gradient attack sees almost nothing of what its images do
to the statistics. Values stay true in all of these; only the backward pass looks elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from . import estimators, kernels
from ._errors import unknown_name
from .estimators import Estimator
from .kernels import MAD_TO_SIGMA

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
        raise unknown_name("gradient", gradient, GRADIENTS)
    if temperature <= 0:
        raise ValueError(f"temperature is a positive number of standard deviations, got {temperature!r}.")
    if gradient == "exact":
        return None
    if gradient == "straight_through":
        return lambda estimator: estimators.get("mean")
    return lambda estimator: smooth(estimator, temperature)


def smooth(estimator: Estimator, temperature: float = 0.5) -> Estimator:
    """An estimator with the same values, whose medians pass their gradient to all values near them.

    Known estimators keep their form. One that a user registered is taken for a median with its mean squared deviation:
    its own gradient is the exact one, and this is what else an attacker would try.
    """
    if estimator.function is estimators.mean:
        return estimator
    kind = getattr(estimator.function, "__name__", "") if estimators.builtin(estimator) else "median"
    return Estimator(f"smooth {estimator.name}", Smooth(kind, temperature))


def softness(estimator: Estimator | None, kind: str) -> float | None:
    """The temperature of what ``smooth`` made of the estimator of that kind; None for anything else."""
    function = None if estimator is None else estimator.function
    return function.temperature if isinstance(function, Smooth) and function.kind == kind else None


@dataclass(frozen=True)
class Smooth:
    """The function of a smooth estimator, by which fast paths know it.

    A median's gradient goes to each value by a Gaussian weight of its distance to the median, in units of the
    temperature times σ. That σ is the root of the mean squared deviation from the median; for MADs, whose estimators
    a few huge values do not move, it is 1.4826 · MAD.
    """

    kind: str
    """The estimator that it has the form of."""
    temperature: float

    def __call__(self, x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        """A centre and a variance per channel."""
        if self.kind == "image_median":
            return self._image_median(x, valid)
        return self._median(x, valid) if self.kind == "median" else self._mad(x, valid)

    def _median(self, x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            middle, variance = kernels.median_statistics(x.detach(), valid)
        centre = kernels.soft_median(x, middle, variance.sqrt(), valid, self.temperature)
        return centre, kernels.square_deviation(x, centre, valid)

    def _mad(self, x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        shape = (1, -1, *[1] * (x.dim() - 2))
        with torch.no_grad():
            middle, _ = kernels.median_statistics(x.detach(), valid)
            mad, _ = kernels.median_statistics((x.detach() - middle.view(shape)).abs(), valid)
            sigma = MAD_TO_SIGMA * mad
        centre = kernels.soft_median(x, middle, sigma, valid, self.temperature)
        away = kernels.soft_median((x - centre.view(shape)).abs(), mad, sigma, valid, self.temperature)
        return centre, (away if self.kind == "mad" else MAD_TO_SIGMA * away).square()

    def _image_median(self, x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        means, within = kernels.image_moments(x)
        within = within.masked_fill(means.isinf(), torch.inf)
        centre = self._over_images(means, valid)
        between = MAD_TO_SIGMA * self._over_images((means - centre).abs(), valid)
        return centre, self._over_images(within, valid) + between.square()

    def _over_images(self, values: Tensor, valid: Tensor | None) -> Tensor:
        with torch.no_grad():
            middle = kernels.middle_over_images(values.detach(), valid)
            sigma = kernels.square_deviation(values.detach(), middle, valid).sqrt()
        return kernels.soft_median(values, middle, sigma, valid, self.temperature)
