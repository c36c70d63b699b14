"""Plans: what a layer launches for activations of one kind, made once and kept.

A kind is the shape, strides and type of the activation, its device, the types of the other tensors, and the kernel. A
call then allocates its output and one or two buffers, and runs the plan's program.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..reference import MAD_FACTORS
from ..saved import shapes
from . import launch, tiling
from .launch import Fill, Given, Step
from .layout import Layout
from .program import Program
from .tiling import Shape, survey_plan

CAPACITY = 4096
"""How many plans are kept. A plan takes some kilobytes."""
Key = tuple[Hashable, ...]


class ForwardPlan:
    """A forward pass: its program, and the places of its small tensors.

    Args:
        x: a dense activation of this kind.
        kernel: which statistics.
        given: which optional tensors there are.
        normalises: whether the output is wanted, and not the statistics alone.
    """

    def __init__(self, x: Tensor, kernel: str, given: Given, normalises: bool) -> None:
        shape = Shape.of(x)
        self.small = kernel == "median" and shape.small
        self.transposes = self.small and shape.last
        """Whether the activation is copied into contiguous memory and back: so little is faster than with strides."""
        self.layout = layout = saved_layout(kernel, shape)
        steps: list[Step] = []
        if self.small or kernel == "image_median":  # kernels mark the images that are not finite; ``bracket`` does this
            steps += [Fill("finite", 1, shape.images), Fill("finite_count", shape.images, 1)]
        if self.small:
            steps += launch.normalise_small_channels(shape._replace(last=False), given)
        elif kernel == "image_median":
            steps += [launch.image_moments(shape), launch.image_statistics(shape, given)]
        else:
            _add_survey(layout, shape)
            steps += _select_medians(shape, kernel, given)
        if normalises and not self.small:
            steps.append(launch.normalise_all(shape, kernel, given))
        self.allocates_output = normalises or self.small
        tensors = ["x", "y", "weight", "bias", "running_centre", "running_variance", "saved", "scratch"]
        tensors += ["residual"] if given.residual else []
        self.program = Program(steps, layout, tensors)


class BackwardPlan:
    """A backward pass: its program, and the places of its small tensors.

    Args:
        x: a dense activation of this kind.
        kernel: which statistics.
        weight: whether there is a weight.
        mean: whether the statistics have the gradient of mean and variance.
        relu: whether the output is behind a ReLU.
        residual: whether another activation was added before it.
    """

    def __init__(
        self, x: Tensor, kernel: str, weight: bool, mean: bool, relu: bool = False, residual: bool = False
    ) -> None:
        shape = Shape.of(x)
        self.layout = layout = saved_layout(kernel, shape)
        layout.add("affine", "affine", 2, shape.channels, rows=("d_weight", "d_bias"))
        over_images = kernel == "image_median" and not mean
        steps: list[Step] = []
        sums, parts, g = None, 1, "g"
        if over_images or not shape.whole:
            sums, parts = ("sums_g", "sums_gx"), launch.reduction(shape).parts
            layout.add("scratch", "sums", 2, parts, shape.channels, dtype=torch.float64, rows=sums)
            steps.append(launch.reduce(shape, relu))
            g = launch.MASKED if relu else g
            if parts > tiling.PARTS_PER_PROGRAM:  # too many for every program to add up
                sums, parts = ("totals_g", "totals_gx"), 1
                layout.add("scratch", "totals", 2, 1, shape.channels, dtype=torch.float64, rows=sums)
                steps.append(launch.add_parts(shape))
        if over_images:
            assert sums is not None
            steps.append(launch.image_gradient(shape, g, weight, sums, parts))
            if not shape.last:
                steps.append(launch.selected_image_gradient(shape, g, weight))
        else:
            mad = kernel in MAD_FACTORS and not mean
            factor = MAD_FACTORS[kernel] if mad else 0.0
            masks = relu and sums is None
            steps.append(launch.combine(shape, g, weight, sums, parts, mean, mad, factor, masks, residual))
        self.masks = relu and (residual or sums is not None)
        """Whether the masked gradient is written."""
        tensors = ["x", "g", "dx", "weight", "affine", "saved", "scratch"]
        self.program = Program(steps, layout, [*tensors, "y", launch.MASKED] if relu else tensors)


def saved_layout(kernel: str, shape: Shape) -> Layout:
    """Return a layout with the places of what is saved for backward, in the buffer ``saved``."""
    images, channels = shape.images, shape.channels
    selected, means, slopes = shapes(kernel, images, channels)
    layout = Layout()
    layout.add("saved", "table", 4, channels, rows=("centre", "variance", "used_centre", "inverse_std"))
    layout.add("saved", "deviation_sum", channels, dtype=torch.float64)
    layout.add("saved", "selected", *selected, dtype=torch.int32)
    if kernel in MAD_FACTORS:
        row = layout.places["selected"]
        layout.places["selected_deviation"] = row._replace(offset=row.offset + 4 * channels, shape=(channels,))
    layout.add("saved", "finite", images, dtype=torch.int32)
    layout.add("saved", "finite_count", 1, dtype=torch.int32)
    if kernel != "median":
        layout.add("saved", "slopes", *slopes)
    if kernel == "image_median":
        layout.add("saved", "moments", 2, *means, rows=("image_means", "image_variances"))
    return layout


def _add_survey(layout: Layout, shape: Shape) -> None:
    """Add what the three kernels that select a median pass on: cuts, tallies, collected values and moments.

    It is up to 160 MiB, and so in a buffer of its own, which is free again after the forward pass: a layer's
    statistics keep the whole buffer that they are in.
    """
    survey, channels = survey_plan(shape), shape.channels
    cut = survey.cut
    layout.add("scratch", "cuts", 2 * channels)
    layout.add("scratch", "collection", cut.blocks * cut.parts * cut.places * cut.channels * survey.room)
    layout.add("scratch", "collected", channels * survey.capacity)
    layout.add("scratch", "tallies", 4 * channels, dtype=torch.int32)
    rows = ("moment_sums", "moment_squares")
    layout.add("scratch", "moment_rows", 2, channels * cut.parts, dtype=torch.float64, rows=rows)


def _select_medians(shape: Shape, kernel: str, given: Given) -> list[Step]:
    """Select the median of each channel and, for a MAD, that of |x − median|; mix the last with the running ones."""
    survey = survey_plan(shape)
    steps: list[Step] = []
    for deviations in (False,) if kernel == "median" else (False, True):
        mixes = given if deviations == (kernel != "median") else given._replace(running=False)
        factor = MAD_FACTORS.get(kernel, 0.0)
        steps.append(launch.bracket(shape, survey, deviations))
        steps.append(launch.collect(survey, deviations))
        steps.append(launch.finish(shape, survey, deviations, factor, mixes))
    return steps


# --- kept plans -------------------------------------------------------------------------------------------------------

AnyPlan = TypeVar("AnyPlan", ForwardPlan, BackwardPlan)
_plans: dict[Key, Any] = {}


def clear() -> None:
    """Forget all plans: they depend on the constants of ``tiling``, which tests change."""
    _plans.clear()


def forward_plan(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running: tuple[Tensor, Tensor] | None,
    kernel: str,
    normalises: bool,
    relu: bool = False,
    residual: bool = False,
) -> ForwardPlan:
    """Return the plan of a forward pass over a dense activation; see ``ForwardPlan``."""
    key = (
        x.shape, x.stride(), x.dtype, x.get_device(), kernel, normalises, relu, residual,
        None if weight is None else weight.dtype,
        None if bias is None else bias.dtype,
        None if running is None else (running[0].dtype, running[1].dtype),
    )  # fmt: skip
    plan: ForwardPlan | None = _plans.get(key)
    if plan is None:
        given = Given(weight is not None, bias is not None, running is not None, relu, residual)
        plan = _keep(key, lambda: ForwardPlan(x, kernel, given, normalises))
    return plan


def backward_plan(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    kernel: str,
    mean: bool,
    relu: bool = False,
    residual: bool = False,
) -> BackwardPlan:
    """Return the plan of a backward pass; ``g`` has the strides of ``x``. See ``BackwardPlan``."""
    weight_type = None if weight is None else weight.dtype
    key = (x.shape, x.stride(), x.dtype, x.get_device(), kernel, mean, relu, residual, g.dtype, weight_type)
    plan: BackwardPlan | None = _plans.get(key)
    if plan is None:
        plan = _keep(key, lambda: BackwardPlan(x, kernel, weight is not None, mean, relu, residual))
    return plan


def _keep(key: Key, make: Callable[[], AnyPlan]) -> AnyPlan:
    while len(_plans) >= CAPACITY:
        _plans.pop(next(iter(_plans)), None)
    plan = make()
    _plans[key] = plan
    return plan
