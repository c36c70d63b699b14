"""Estimators: how the activations of one batch become a centre and a variance per channel.

An estimator is a function ``f(x, valid) -> (centre, variance)``. ``x`` is ``(B, C, *)``; ``valid`` is a ``(B,)`` mask
of the images to use, or None for all. Both results have shape ``(C,)`` and are float32 or wider. Equation numbers are
those of section 5 and appendix H of MedBN (CVPR 2024).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor

from . import kernels
from ._errors import unknown_name
from ._registry import Registry
from .kernels import MAD_TO_SIGMA

Function = Callable[[Tensor, "Tensor | None"], "tuple[Tensor, Tensor]"]


@dataclass(frozen=True)
class Estimator:
    """A function that estimates a centre and a variance, with what layers and reports need to know about it.

    Args:
        name: the name in messages, in stored results and, if registered, for ``estimator=``.
        function: ``f(x, valid) -> (centre, variance)``.
        robust: whether images with non-finite values are left out of the statistics by default.
        prior: the weight of the training statistics, with which layers mix what the function returns.
        kernel: the kernel that computes the same as the function, one of ``medbn.kernels.KERNELS``; None if there is
            none. Layers use it wherever it can run.
        temperature: None, or the width of the kernel's ``"smooth"`` gradient; see ``medbn.gradients``.
        label: the name in reports; by default ``name``.
        about: what it is, for the legend of a report.
    """

    name: str
    function: Function
    robust: bool = True
    prior: float = 0.0
    kernel: str | None = None
    temperature: float | None = None
    label: str = ""
    about: str = "registered by its user"

    def __post_init__(self) -> None:
        if self.kernel is not None and self.kernel not in kernels.KERNELS:
            raise unknown_name("kernel", self.kernel, kernels.KERNELS)
        if not self.label:
            object.__setattr__(self, "label", self.name)

    def __call__(self, x: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Call the function, and check the types and shapes that it returns."""
        result = self.function(x, valid)
        channels = (x.shape[1],)
        if not (isinstance(result, tuple | list) and len(result) == 2 and all(isinstance(s, Tensor) for s in result)):
            raise TypeError(
                f"estimator {self.name!r} returned a {type(result).__name__}; a centre and a variance per channel, two"
                f" tensors of shape {channels}, are expected."
            )
        centre, variance = (s.to(kernels.working_dtype(x)) for s in result)
        if centre.shape != channels or variance.shape != channels:
            raise ValueError(
                f"estimator {self.name!r} returned shapes {tuple(centre.shape)} and {tuple(variance.shape)}"
                f" for input {tuple(x.shape)}; a centre and a variance per channel, {channels} each, are expected."
            )
        return centre, variance

    def __reduce__(self) -> tuple[Any, ...]:
        # A registered estimator is pickled by name, so that a pickled layer contains no function.
        if self.name in _registry and _registry.get(self.name) is self:
            return get, (self.name,)
        return Estimator, tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    def __repr__(self) -> str:
        return f"<estimator {self.name}>"


_registry = Registry[Estimator]("estimator", forbidden="@")


def available() -> list[str]:
    """Return the names that ``estimator=`` accepts.

    >>> available()
    ['mean', 'median', 'image_median', 'mad', 'mad_scaled']
    """
    return _registry.available()


def get(estimator: str | Estimator) -> Estimator:
    """Return the estimator of that name; an Estimator is returned as it is.

    ``NAME@PRIOR`` is the estimator NAME, mixed with the training statistics, which get the weight PRIOR.

    >>> get("image_median@0.6").prior
    0.6
    """
    if isinstance(estimator, Estimator):
        return estimator
    if not isinstance(estimator, str) or "@" not in estimator:
        return _registry.get(estimator)
    name, _, prior = estimator.partition("@")
    return with_prior(name, prior)


def with_prior(estimator: str | Estimator, prior: float | str) -> Estimator:
    """Return an estimator that layers mix with their training statistics, which get the weight ``prior``.

    Malicious images then move only the remaining part of the mixture.
    """
    base = get(estimator)
    try:
        weight = float(prior)
    except ValueError:
        weight = -1.0
    if not 0.0 <= weight <= 1.0:
        raise ValueError(f"an estimator's prior is a weight between 0 and 1, got {prior!r}.")
    return dataclasses.replace(
        base,
        name=f"{base.name}@{weight:g}",
        prior=base.prior + weight - base.prior * weight,
        label=f"{base.label}, prior {weight:g}",
        about=f"{base.about}; the training statistics have the weight {weight:g}",
    )


@overload
def register(
    name: str,
    function: None = None,
    *,
    robust: bool = ...,
    kernel: str | None = ...,
    label: str = ...,
    about: str = ...,
    replace: bool = ...,
) -> Callable[[Function], Function]: ...
@overload
def register(
    name: str,
    function: Function,
    *,
    robust: bool = ...,
    kernel: str | None = ...,
    label: str = ...,
    about: str = ...,
    replace: bool = ...,
) -> Function: ...


def register(
    name: str,
    function: Function | None = None,
    *,
    robust: bool = True,
    kernel: str | None = None,
    label: str = "",
    about: str = "registered by its user",
    replace: bool = False,
) -> Function | Callable[[Function], Function]:
    """Register ``function(x, valid) -> (centre, variance)`` as an estimator, directly or as a decorator.

    Images that ``valid`` leaves out are finite in ``x`` (zero if they were not), so that masking by multiplication is
    safe. Written in torch operations, the function is differentiated by autograd, and every layer, method, attack and
    report can use it.

    Args:
        name: the name that ``estimator=`` then accepts.
        function: the function; without it, a decorator is returned.
        robust: as in Estimator, like the next three.
        kernel: the name of a kernel that computes the same.
        label: the name in reports.
        about: what it is, for the legend of a report.
        replace: replace an estimator of the same name.

    >>> import medbn
    >>> @register("first_image", label="first image")
    ... def first_image(x, valid):
    ...     return x[0].flatten(1).mean(1), x[0].flatten(1).var(1)
    >>> layer = medbn.RobustBatchNorm2d(3, estimator="first_image")
    >>> unregister("first_image")
    """

    def add(function: Function) -> Function:
        if not callable(function):
            raise TypeError(f"estimator {name!r} must be callable as f(x, valid), got {function!r}.")
        estimator = Estimator(name, function, robust, kernel=kernel, label=label, about=about)
        _registry.register(name, estimator, replace=replace)
        return function

    return add if function is None else add(function)


def unregister(name: str) -> None:
    """Remove an estimator; layers that already use it keep it."""
    _registry.unregister(name)


@register(
    "mean",
    robust=False,
    kernel="mean",
    label="BatchNorm",
    about="the mean and the variance of the batch: no defence",
)
def mean(x: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the mean and the mean squared deviation from it, as BatchNorm does (eq. 2-3).

    A single image can move both without bound. From about |x| = 1e19 on, where squares overflow, some of torch's CUDA
    kernels return NaN for the whole batch.
    """
    counted = x if valid is None else torch.where(kernels.view_per_image(valid, x), x, 0.0)
    axes = [axis for axis in range(x.dim()) if axis != 1]
    images = x.shape[0] if valid is None else valid.sum().clamp(min=1)
    centre = counted.sum(dim=axes, dtype=kernels.working_dtype(x)) / (images * x[0, 0].numel())
    return centre, kernels.square_deviation(x, centre, valid)


@register(
    "median",
    kernel="median",
    label="MedBN",
    about="the median, and the mean squared deviation from it (the paper's defence)",
)
def median(x: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the lower median and the mean squared deviation from it, as MedBN does (eq. 7-8).

    The median is the order statistic at rank ⌊(n−1)/2⌋, counting from 0, as in ``torch.median`` and in the authors'
    code. The definition printed below eq. 8, min{a ∈ A : |{x ∈ A : a > x}| ≥ |A|/2}, is a different one: the upper
    median for even n, one rank above the middle for odd n, and undefined when more than half of the values equal the
    maximum. The centre is bounded while less than half of the values are malicious; the variance is a mean, which a
    single image can move without bound.
    """
    centre = kernels.lower_median(x, valid)
    return centre, kernels.square_deviation(x, centre, valid)


@register("image_median", kernel="image_median", about="medians over whole images, of their means and variances (ours)")
def image_median(x: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return medians over images of each image's own statistics, because an attacker owns whole images, not pixels.

    The centre is the median over images of each image's channel mean. The variance is the median over images of the
    variance within an image, plus (1.4826 · the median absolute deviation of the image means)² for the variance between
    images. These medians average the two middle values, because the lower median is biased when there are few images.
    B = 1 is instance normalisation; H·W = 1 is ``mad_scaled`` with this median.
    """
    return kernels.medians_over_images(x, lambda values: kernels.middle_over_images(values, valid))


@register("mad", kernel="mad", label="MAD", about="the median, and the squared median absolute deviation (appendix H)")
def mad(x: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the lower median and the squared median absolute deviation from it (appendix H).

    Both are bounded while less than half of the values are malicious.
    """
    centre = kernels.lower_median(x, valid)
    return centre, kernels.median_absolute_deviation(x, centre, valid).square()


@register(
    "mad_scaled",
    kernel="mad_scaled",
    label="scaled MAD",
    about="as MAD, scaled to be the variance of a normal distribution",
)
def mad_scaled(x: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return what ``mad`` does, scaled to agree with the variance of a Gaussian: (1.4826 · MAD)²."""
    centre, variance = mad(x, valid)
    return centre, MAD_TO_SIGMA**2 * variance
