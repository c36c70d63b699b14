"""How a layer normalises: isolate images that are not finite, estimate, mix with running statistics, normalise.

``normalise_batch`` does all four. It calls the kernel that the estimator names (``Estimator.kernel``) wherever that can
run, and composes the reference functions everywhere else; the results agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from . import distributed, kernels
from ._isolate import check_activation, check_input, check_valid, isolate, isolates, mask_isolated
from .distributed import Group
from .estimators import Estimator

MINIMUM_VALUES = 3
"""Fewer values per channel are no estimate of statistics: a median absolute deviation of two values is 0."""


class Normalised(NamedTuple):
    """A normalised batch and its statistics."""

    y: Tensor
    batch_centre: Tensor
    batch_variance: Tensor
    counted: Tensor | None
    """The number of images that the batch's statistics were estimated from; None for all of them."""
    used: tuple[Tensor, Tensor] | None
    """The centre and the variance that ``y`` was normalised with; None where a kernel has mixed them."""


def normalise_batch(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    estimator: Estimator,
    eps: float,
    nonfinite: str | None = None,
    *,
    valid: Tensor | None = None,
    running: tuple[Tensor, Tensor] | None = None,
    batch_weight: float = 1.0,
    backward: Estimator | None = None,
    detached: bool = True,
    group: Group | None = None,
) -> Normalised:
    """Normalise a batch with its own statistics, or with a mixture of these and running statistics.

    Args:
        x: ``(B, C, *)``.
        weight: the affine map's factor, or None.
        bias: the affine map's summand, or None.
        estimator: how the batch's centre and variance are estimated.
        eps: added to the variance.
        nonfinite: as in ``medbn.functional.statistics``.
        valid: ``(B,)`` mask of the images to estimate from; None for all.
        running: centre and variance that ``batch_weight`` leaves the rest to; also used alone if no image is finite,
            and in channels that have too few values, see ``_mark_few_values``.
        batch_weight: the weight of the batch's statistics.
        backward: the estimator whose gradient the statistics have, if not their own.
        detached: whether the returned statistics may be without gradients. A kernel's are.
        group: the processes of whose batch ``x`` is a part, if there are others.
    """
    if detached and valid is None and group is None:
        result = _call_kernel(x, weight, bias, estimator, eps, nonfinite, running, batch_weight, backward)
        if result is not None:
            few = _mark_few_values(x, result.counted, result.batch_variance, eps, running)
            if few is None:
                return result
            return _replace_few_values(result, few, x, running, batch_weight, weight, bias, estimator, eps, nonfinite)
    return _compose(x, weight, bias, estimator, eps, nonfinite, valid, running, batch_weight, backward, group)


def _mark_few_values(
    x: Tensor, counted: Tensor | None, variance: Tensor, eps: float, running: tuple[Tensor, Tensor] | None
) -> Tensor | None:
    """Return the mask of the channels to normalise with running statistics, on the device; None if there are none.

    These are channels of fewer than three values; and of three values whose variance is below ``eps``, which then alone
    would decide the scale, as where two of them are equal and the estimator is a MAD. Without running statistics, only
    what a mask leaves of a channel is marked, if it is one value.
    """
    per_image = math.prod(x.shape[2:])
    known = counted is None
    if per_image > MINIMUM_VALUES or (known and (running is None or x.shape[0] * per_image > MINIMUM_VALUES)):
        return None
    values = per_image * (torch.full_like(variance, x.shape[0]) if counted is None else counted)
    if running is None:
        return (values < 2).expand(variance.shape)
    return (values < MINIMUM_VALUES) | ((values == MINIMUM_VALUES) & (variance < eps))


def _replace_few_values(
    result: Normalised,
    few: Tensor,
    x: Tensor,
    running: tuple[Tensor, Tensor] | None,
    batch_weight: float,
    *affine_and_rest: Any,
) -> Normalised:
    """Return the result of a kernel, normalised with the running statistics in the channels of the mask ``few``."""
    y = torch.full_like(x, torch.nan) if running is None else normalise_with(x, running, *affine_and_rest)
    y = torch.where(kernels.view_per_channel(few, x), y, result.y)
    batch = (result.batch_centre, result.batch_variance)
    used = kernels.mix(batch, running, batch_weight, result.counted)
    return Normalised(y, *_drop(batch, few), _count_without(result.counted, few), _replace(used, running, few))


def _drop(statistics: tuple[Tensor, Tensor], few: Tensor) -> tuple[Tensor, Tensor]:
    """Return statistics that are NaN, and so enter no average, in the channels of a mask."""
    centre, variance = (s.masked_fill(few, torch.nan) for s in statistics)
    return centre, variance


def _count_without(counted: Tensor | None, few: Tensor) -> Tensor | None:
    """Return the number of images, or 0 if no channel has enough values."""
    return None if counted is None else counted.masked_fill(few.all(), 0)


def _replace(used: tuple[Tensor, Tensor], running: tuple[Tensor, Tensor] | None, few: Tensor) -> tuple[Tensor, Tensor]:
    """Return the statistics to normalise with, which are the running ones, or NaN, in the channels of a mask."""
    if running is None:
        return _drop(used, few)
    centre, variance = (torch.where(few, r.to(u.dtype), u) for u, r in zip(used, running, strict=True))
    return centre, variance


def normalise_with(
    x: Tensor,
    statistics: tuple[Tensor, Tensor],
    weight: Tensor | None,
    bias: Tensor | None,
    estimator: Estimator,
    eps: float,
    nonfinite: str | None = None,
) -> Tensor:
    """Normalise a batch with given statistics; isolate the images that the estimator would."""
    check_activation(x)
    finite = None
    if isolates(estimator, nonfinite):
        x, finite = isolate(x)
    centre, variance = (s.to(kernels.working_dtype(x)) for s in statistics)
    return mask_isolated(kernels.normalise(x, centre, variance, weight, bias, eps), finite)


def normalise_chosen(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    estimator: Estimator,
    eps: float,
    nonfinite: str | None,
    choose: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    *,
    valid: Tensor | None = None,
    backward: Estimator | None = None,
    group: Group | None = None,
) -> Normalised:
    """Normalise a batch with what ``choose`` returns for its centre and variance; see ``normalise_batch``."""
    batch = None
    local = valid is None and group is None
    if not torch.is_grad_enabled() and local and estimator.kernel and isolates(estimator, nonfinite):
        check_input(x)
        batch = kernels.statistics(x, estimator.kernel)  # isolates images that are not finite
    if batch is None:
        estimated = estimate_batch(x, estimator, valid, nonfinite, backward, group)
        batch, x, finite = (estimated.centre, estimated.variance), estimated.x, estimated.finite
    else:
        finite = None
    used = choose(*batch)
    if torch.is_grad_enabled() or used[0].dtype != x.dtype:
        y = kernels.normalise(x, *used, weight, bias, eps)
    else:
        y = F.batch_norm(x, *used, weight, bias, False, 0.0, eps)  # in one pass over the activation
    return Normalised(mask_isolated(y, finite), *batch, None, used)


def _compose(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    estimator: Estimator,
    eps: float,
    nonfinite: str | None,
    valid: Tensor | None,
    running: tuple[Tensor, Tensor] | None,
    batch_weight: float,
    backward: Estimator | None,
    group: Group | None = None,
) -> Normalised:
    """Normalise by the reference functions, which are differentiable any number of times."""
    batch = estimate_batch(x, estimator, valid, nonfinite, backward, group)
    used = kernels.mix((batch.centre, batch.variance), running, batch_weight, batch.counted)
    few = _mark_few_values(x, batch.counted, batch.variance, eps, running)
    if few is not None:
        used = _replace(used, running, few)
        centre, variance = _drop((batch.centre, batch.variance), few)
        batch = batch._replace(centre=centre, variance=variance, counted=_count_without(batch.counted, few))
    y = mask_isolated(kernels.normalise(batch.x, *used, weight, bias, eps), batch.finite)
    return Normalised(y, batch.centre, batch.variance, batch.counted, used)


def _call_kernel(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    estimator: Estimator,
    eps: float,
    nonfinite: str | None,
    running: tuple[Tensor, Tensor] | None,
    batch_weight: float,
    backward: Estimator | None,
) -> Normalised | None:
    """Normalise by the estimator's kernel; return None where there is none for this input."""
    kernel = estimator.kernel
    if kernel is None or not isolates(estimator, nonfinite) or any(s.requires_grad for s in running or ()):
        return None
    gradient, temperature = "own", 0.0
    if backward is not None:
        if backward.kernel == "mean":
            gradient = "mean"
        elif backward.kernel == kernel and backward.temperature is not None:
            gradient, temperature = "smooth", backward.temperature
        else:
            return None
    if kernels.selected(x, kernel) == "reference":
        return None
    spec = kernels.Spec(kernel, batch_weight, eps, gradient, temperature)
    if torch.compiler.is_compiling():
        if gradient == "smooth":
            return None
        return Normalised(*kernels.norm_operator(x, weight, bias, running, spec), None)
    with torch.no_grad():
        w, b = (None if t is None else t.detach() for t in (weight, bias))
        y, saved = kernels.forward(x.detach(), w, b, running, spec)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)):
        composition = (estimator, eps, nonfinite, None, running, batch_weight, backward)
        y = _KernelNorm.apply(x, weight, bias, [y], saved, spec, composition)  # type: ignore[no-untyped-call]
    counted = None if saved.finite_count is None else saved.finite_count[0]
    return Normalised(y, saved.centre, saved.variance, counted, None)


class _KernelNorm(Function):
    """The output of a kernel, which has been computed already, as a differentiable function of its inputs.

    The output is passed in a list, which autograd does not inspect: returned directly, an input would become a view,
    and in-place operations such as the ReLU that often follows a normalisation are not allowed on that.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        output: list[Tensor],
        saved: kernels.Saved,
        spec: kernels.Spec,
        composition: tuple[Any, ...],
    ) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.saved, ctx.spec, ctx.composition = saved, spec, composition
        return output[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (g,) = grads
        x, weight, bias = ctx.saved_tensors
        needs = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # create_graph=True: differentiate the composition, which autograd can follow
            inputs = [t for t, needed in zip((x, weight, bias), needs, strict=True) if needed]
            with torch.enable_grad():
                y = _compose(x, weight, bias, *ctx.composition).y
                gradients = iter(torch.autograd.grad(y, inputs, g, create_graph=True))
            results = [next(gradients) if needed else None for needed in needs]
        else:
            w = None if weight is None else weight.detach()
            d_x, d_weight, d_bias = kernels.backward(g, x.detach(), w, ctx.saved, ctx.spec)
            parameters = zip((d_weight, d_bias), (weight, bias), needs[1:], strict=True)
            results = [d_x, *(d.to(t.dtype) if needed else None for d, t, needed in parameters)]
        return *results, None, None, None, None


# --- the parts of the composition -------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """A batch whose non-finite images are isolated, and its statistics."""

    x: Tensor
    """The input; isolated images are zero."""
    centre: Tensor
    variance: Tensor
    finite: Tensor | None
    """``(B,)`` mask of the images that are not isolated; None when none is."""
    counted: Tensor | None
    """The number of images that the statistics were estimated from; None for all of them."""


def estimate_batch(
    x: Tensor,
    estimator: Estimator,
    valid: Tensor | None = None,
    nonfinite: str | None = None,
    backward: Estimator | None = None,
    group: Group | None = None,
) -> Batch:
    """Isolate, then estimate. With ``backward``, the statistics have the gradient of that estimator's."""
    if group is None:
        check_input(x)
    else:
        check_activation(x)  # another process may have all images
    valid = check_valid(valid, x)
    finite = None
    if isolates(estimator, nonfinite):
        x, finite = isolate(x)
        if finite is not None:
            valid = finite if valid is None else valid & finite
    elif valid is not None:
        x, finite = isolate(x, never=valid)  # padding may contain anything
    if group is not None:
        return _estimate_over_group(x, estimator, valid, finite, backward, group)
    if backward is None:
        centre, variance = estimator(x, valid)
    else:
        with torch.no_grad():
            values = None if estimator.kernel is None else kernels.statistics(x, estimator.kernel, valid)
            values = estimator(x, valid) if values is None else values
        centre, variance = (kernels.substitute(v, g) for v, g in zip(values, backward(x, valid), strict=True))
    counted = None
    if valid is not None:
        counted = valid.sum()
        centre, variance = (s.masked_fill(counted == 0, torch.nan) for s in (centre, variance))
    return Batch(x, centre, variance, finite, counted)


def _estimate_over_group(
    x: Tensor,
    estimator: Estimator,
    valid: Tensor | None,
    finite: Tensor | None,
    backward: Estimator | None,
    group: Group,
) -> Batch:
    """Estimate from the images of all processes."""
    if backward is None:
        centre, variance, counted = distributed.statistics(x, estimator, valid, group)
    else:
        with torch.no_grad():
            *values, counted = distributed.statistics(x, estimator, valid, group)
        gradients = distributed.statistics(x, backward, valid, group)
        centre, variance = (kernels.substitute(v, g) for v, g in zip(values, gradients[:2], strict=True))
    centre, variance = (s.masked_fill(counted == 0, torch.nan) for s in (centre, variance))
    return Batch(x, centre, variance, finite, counted)


def is_batch_norm(x: Tensor, estimator: Estimator, nonfinite: str | None) -> bool:
    """Return whether torch's own BatchNorm computes the same; it refuses a single value per channel."""
    return estimator.kernel == "mean" and not isolates(estimator, nonfinite) and x.numel() > x.shape[1]
