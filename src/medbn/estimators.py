"""How the activations of one batch become a centre and a variance per channel.

An estimator is a function ``f(x, valid) -> (centre, variance)``. ``x`` is ``(B, C, *)``; ``valid`` is a ``(B,)`` mask
of the images that count, or None when all do. Both results are ``(C,)``, in float32 or wider. The paper's equations are
those of section 5 and appendix H of MedBN (CVPR 2024).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, overload

import torch
from torch import Tensor

from . import kernels
from ._errors import unknown_name
from .kernels import MAD_TO_SIGMA

Function = Callable[[Tensor, "Tensor | None"], "tuple[Tensor, Tensor]"]


@dataclass(frozen=True)
class Estimator:
    """A named estimator. ``robust`` ones leave images with non-finite values out of the statistics by default.

    ``prior`` is the weight of the training statistics, which layers mix with what the function finds.
    """

    name: str
    function: Function
    robust: bool = True
    prior: float = 0.0

    def __call__(self, x: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Estimate, and check what came back."""
        found = self.function(x, valid)
        channels = (x.shape[1],)
        if not (isinstance(found, tuple | list) and len(found) == 2 and all(isinstance(s, Tensor) for s in found)):
            raise TypeError(
                f"estimator {self.name!r} returned a {type(found).__name__}; a centre and a variance per channel, two"
                f" tensors of shape {channels}, are expected."
            )
        centre, variance = (s.to(kernels.working_dtype(x)) for s in found)
        if centre.shape != channels or variance.shape != channels:
            raise ValueError(
                f"estimator {self.name!r} returned shapes {tuple(centre.shape)} and {tuple(variance.shape)}"
                f" for input {tuple(x.shape)}; a centre and a variance per channel, {channels} each, are expected."
            )
        return centre, variance

    def __reduce__(self) -> tuple[Any, ...]:
        # By name where the registry knows it, so that a pickled layer needs no function inside.
        if _registry.get(self.name) is self:
            return get, (self.name,)
        return Estimator, (self.name, self.function, self.robust, self.prior)

    def __repr__(self) -> str:
        return f"<estimator {self.name}>"


_registry: dict[str, Estimator] = {}


def available() -> list[str]:
    """The names that ``estimator=`` accepts.

    >>> available()
    ['image_median', 'mad', 'mad_scaled', 'mean', 'median']
    """
    return sorted(_registry)


def get(estimator: str | Estimator) -> Estimator:
    """The estimator of that name; an Estimator is returned as it is.

    ``NAME@PRIOR`` is that estimator, mixed with the training statistics: these have the weight PRIOR.

    >>> get("image_median@0.6").prior
    0.6
    """
    if isinstance(estimator, Estimator):
        return estimator
    name, at, prior = estimator.partition("@") if isinstance(estimator, str) else (estimator, "", "")
    if not isinstance(name, str) or name not in _registry:
        raise unknown_name("estimator", name, _registry)
    return anchored(_registry[name], prior) if at else _registry[name]


def anchored(estimator: str | Estimator, prior: float | str) -> Estimator:
    """An estimator whose statistics layers mix with their training statistics, which have the weight ``prior``.

    Whatever malicious images do to a batch's statistics then reaches the rest of the mixture only.
    """
    base = get(estimator)
    try:
        weight = float(prior)
    except ValueError:
        weight = -1.0
    if not 0.0 <= weight <= 1.0:
        raise ValueError(f"an estimator's prior is a weight between 0 and 1, got {prior!r}.")
    return replace(base, name=f"{base.name}@{weight:g}", prior=base.prior + weight - base.prior * weight)


@overload
def register(
    name: str, function: None = None, *, robust: bool = ..., replace: bool = ...
) -> Callable[[Function], Function]: ...
@overload
def register(name: str, function: Function, *, robust: bool = ..., replace: bool = ...) -> Function: ...


def register(
    name: str, function: Function | None = None, *, robust: bool = True, replace: bool = False
) -> Function | Callable[[Function], Function]:
    """Make ``function(x, valid) -> (centre, variance)`` an estimator of that name, directly or as a decorator.

    Images that do not count are finite in ``x`` (zero, if they were not), so that masking by multiplication is safe.
    Use torch operations, and autograd differentiates it; nothing else is needed for any layer, method or attack.

    >>> import medbn
    >>> @register("first_image")
    ... def first_image(x, valid):
    ...     return x[0].flatten(1).mean(1), x[0].flatten(1).var(1)
    >>> layer = medbn.RobustBatchNorm2d(3, estimator="first_image")
    >>> unregister("first_image")
    """
    if not isinstance(name, str) or not name or "@" in name:
        raise TypeError(f"an estimator's name is a non-empty string without '@', not {name!r}.")
    if name in _registry and not replace:
        raise ValueError(f"estimator {name!r} exists already; pass replace=True to put another in its place.")

    def add(function: Function) -> Function:
        if not callable(function):
            raise TypeError(f"estimator {name!r} must be callable as f(x, valid), not {function!r}.")
        _registry[name] = Estimator(name, function, robust)
        return function

    return add if function is None else add(function)


def unregister(name: str) -> None:
    """Forget an estimator; layers that already use it keep it."""
    if name not in _registry:
        raise unknown_name("estimator", name, _registry)
    del _registry[name]


@register("mean", robust=False)
def mean(x: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """BatchNorm (eq. 2-3): mean, and mean squared deviation from it. One image moves both without bound.

    Layers and ``robust_norm`` use torch's own BatchNorm kernel for it wherever that computes just this. From about
    |x| = 1e19 on, where squares overflow, some of torch's CUDA kernels return NaN for the whole batch.
    """
    counted = x if valid is None else torch.where(valid.view(-1, *[1] * (x.dim() - 1)), x, 0.0)
    axes = [axis for axis in range(x.dim()) if axis != 1]
    images = x.shape[0] if valid is None else valid.sum().clamp(min=1)
    centre = counted.sum(dim=axes, dtype=kernels.working_dtype(x)) / (images * x[0, 0].numel())
    return centre, kernels.square_deviation(x, centre, valid)


@register("median")
def median(x: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """MedBN (eq. 7-8): lower median, and mean squared deviation from it.

    The median is the order statistic at rank ⌊(n−1)/2⌋, counting from 0, as ``torch.median`` gives it and as the
    authors' code uses it. The definition printed below eq. 8, min{a ∈ A : |{x ∈ A : a > x}| ≥ |A|/2}, is another: the
    upper median for even n, one above the middle for odd n, and of the empty set when more than half of the values
    equal the maximum. The centre holds while less than half of the values are malicious; the variance is a mean, and
    one image moves it without bound.
    """
    centre = kernels.lower_median(x, valid)
    return centre, kernels.square_deviation(x, centre, valid)


@register("mad")
def mad(x: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Appendix H: lower median, and the squared median absolute deviation from it. Both hold below one half."""
    centre = kernels.lower_median(x, valid)
    return centre, kernels.median_absolute_deviation(x, centre, valid).square()


@register("mad_scaled")
def mad_scaled(x: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Like ``mad``, scaled to agree with the variance of a Gaussian: (1.4826 · MAD)²."""
    centre, variance = mad(x, valid)
    return centre, MAD_TO_SIGMA**2 * variance


@register("image_median")
def image_median(x: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Medians over images, because an attacker owns whole images and not single pixels.

    The centre is the median over images of each image's channel mean. The variance is the median over images of the
    variance within an image, plus (1.4826 · the median absolute deviation of the image means)² for the variance between
    them. These medians average the two middle values: the lower median is biased when there are few images. B = 1 is
    instance normalisation; H·W = 1 is ``mad_scaled`` with this median.
    """
    means, within = kernels.image_moments(x)
    within = within.masked_fill(means.isinf(), torch.inf)  # not NaN: one image of huge values must stay one image
    centre = kernels.middle_over_images(means, valid)
    between = MAD_TO_SIGMA * kernels.middle_over_images((means - centre).abs(), valid)
    return centre, kernels.middle_over_images(within, valid) + between.square()


_BUILTIN = (median, mad, mad_scaled, image_median)


def builtin(estimator: Estimator) -> bool:
    """Whether an estimator's function is one of the robust ones that stand above, whatever its name is."""
    return any(estimator.function is function for function in _BUILTIN)
