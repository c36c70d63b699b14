"""How a layer normalises: isolate images that are not finite, estimate, mix with running statistics, normalise.

``normalise_batch`` does all four. It calls the kernel that the estimator names (``Estimator.kernel``) wherever that can
run, and composes the reference functions everywhere else; the results agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from . import kernels
from ._estimate import estimate_batch
from ._few_values import count_without, drop_statistics, has_many_values, mark_few_values, replace_statistics
from ._isolate import check_activation, check_input, isolate, isolates, mask_isolated
from .distributed import Group
from .estimators import Estimator


class Normalised(NamedTuple):
    """A normalised batch and its statistics."""

    y: Tensor
    batch_centre: Tensor
    batch_variance: Tensor
    counted: Tensor | None
    """The number of images that the batch's statistics were estimated from; None for all of them."""
    used: tuple[Tensor, Tensor] | None
    """The centre and the variance that ``y`` was normalised with; None where a kernel has mixed them."""


class KernelNormalised:
    """What a kernel has normalised, as a ``Normalised``. Its statistics become tensors where they are read."""

    __slots__ = ("saved", "y")
    used = None

    def __init__(self, y: Tensor, saved: kernels.Saved) -> None:
        self.y, self.saved = y, saved

    @property
    def batch_centre(self) -> Tensor:
        """As in ``Normalised``."""
        return self.saved.centre

    @property
    def batch_variance(self) -> Tensor:
        """As in ``Normalised``."""
        return self.saved.variance

    @property
    def counted(self) -> Tensor | None:
        """As in ``Normalised``."""
        return None if self.saved.finite_count is None else self.saved.finite_count[0]


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
) -> Normalised | KernelNormalised:
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
            and in channels that have too few values, see ``mark_few_values``.
        batch_weight: the weight of the batch's statistics.
        backward: the estimator whose gradient the statistics have, if not their own.
        detached: whether the returned statistics may be without gradients. A kernel's are.
        group: the processes of whose batch ``x`` is a part, if there are others.
    """
    if detached and valid is None and group is None:
        result = _call_kernel(x, weight, bias, estimator, eps, nonfinite, running, batch_weight, backward)
        if result is not None:
            if has_many_values(x):
                return result
            few = mark_few_values(x, result.counted, result.batch_variance, eps, running)
            if few is None:
                return result
            return _replace_few_values(result, few, x, running, batch_weight, weight, bias, estimator, eps, nonfinite)
    return compose(x, weight, bias, estimator, eps, nonfinite, valid, running, batch_weight, backward, group)


def _replace_few_values(
    result: Normalised | KernelNormalised,
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
    return Normalised(
        y, *drop_statistics(batch, few), count_without(result.counted, few), replace_statistics(used, running, few)
    )


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


def compose(
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
    few = mark_few_values(x, batch.counted, batch.variance, eps, running)
    if few is not None:
        used = replace_statistics(used, running, few)
        centre, variance = drop_statistics((batch.centre, batch.variance), few)
        batch = batch._replace(centre=centre, variance=variance, counted=count_without(batch.counted, few))
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
) -> Normalised | KernelNormalised | None:
    """Normalise by the estimator's kernel; return None where there is none for this input."""
    spec = choose_spec(estimator, eps, nonfinite, running, batch_weight, backward)
    if spec is None or kernels.selected(x, spec.kernel) == "reference":
        return None
    if torch.compiler.is_compiling():
        if spec.backward == "smooth":
            return None
        return Normalised(*kernels.norm_operator(x, weight, bias, running, spec), None)
    y, saved = kernels.forward(x, weight, bias, running, spec)
    if needs_function(x, weight, bias):
        composition = (estimator, eps, nonfinite, None, running, batch_weight, backward)
        y = _KernelNorm.apply(x, weight, bias, [y], saved, spec, composition)  # type: ignore[no-untyped-call]
    return KernelNormalised(y, saved)


def choose_spec(
    estimator: Estimator,
    eps: float,
    nonfinite: str | None,
    running: tuple[Tensor, Tensor] | None,
    batch_weight: float,
    backward: Estimator | None,
) -> kernels.Spec | None:
    """Return what the estimator's kernel is to compute; None if it cannot."""
    kernel = estimator.kernel
    if kernel is None or not isolates(estimator, nonfinite):
        return None
    if running is not None and (running[0].requires_grad or running[1].requires_grad):
        return None
    if backward is None:
        return kernels.Spec(kernel, batch_weight, eps)
    if backward.kernel == "mean":
        return kernels.Spec(kernel, batch_weight, eps, "mean")
    if backward.kernel == kernel and backward.temperature is not None:
        return kernels.Spec(kernel, batch_weight, eps, "smooth", backward.temperature)
    return None


def needs_function(*tensors: Tensor | None) -> bool:
    """Return whether what a kernel computes of these tensors needs a gradient."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


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
                y = compose(x, weight, bias, *ctx.composition).y
                gradients = iter(torch.autograd.grad(y, inputs, g, create_graph=True))
            results = [next(gradients) if needed else None for needed in needs]
        else:
            d_x, d_weight, d_bias = kernels.backward(g, x, weight, ctx.saved, ctx.spec)
            results = [
                d_x,
                d_weight.to(weight.dtype) if needs[1] else None,
                d_bias.to(bias.dtype) if needs[2] else None,
            ]
        return *results, None, None, None, None


def is_batch_norm(x: Tensor, estimator: Estimator, nonfinite: str | None) -> bool:
    """Return whether torch's own BatchNorm computes the same; it refuses a single value per channel."""
    return estimator.kernel == "mean" and not isolates(estimator, nonfinite) and x.numel() > x.shape[1]
