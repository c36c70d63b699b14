"""Launch the Triton kernels: one function per kernel, with the tensors and the tiling that it takes.

Activations are dense ``(B, C, *)`` in the memory format of ``x``. ``saved`` has per-channel results; a forward kernel
writes to its tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..reference import MAD_FACTORS
from ..saved import Saved, Spec
from . import gradient, images, median, normalise, small_channel, survey, tiling
from .tiling import Shape, SurveyPlan, cdiv, next_power_of_2, plan, survey_plan

Pair = tuple[Tensor, Tensor]


def _warps(number: int) -> int:
    """Return the number of warps nearest to this that a program can have."""
    return max(1, min(16, number))


# --- forward ----------------------------------------------------------------------------------------------------------


def normalise_small_channels(
    x: Tensor, y: Tensor, weight: Tensor | None, bias: Tensor | None, running: Pair | None, saved: Saved, shape: Shape,
    spec: Spec,
) -> None:  # fmt: skip
    """Select medians, mix and normalise in one kernel; ``x`` is contiguous. The second launch is for NaN and inf."""
    centre, padded, row = saved.centre, shape.padded, shape.row
    parameters = (centre if weight is None else weight, centre if bias is None else bias)
    out = (centre, saved.variance, saved.deviation_sum, saved.selected, saved.used_centre, saved.inverse_std)
    for retry in (False, True):
        small_channel.normalise_small_channels[(shape.channels,)](
            x, y, *parameters, *(running or (centre, centre)), *out, saved.finite, saved.finite_count, *shape[:3],
            spec.eps, spec.batch_weight, RUNNING=running is not None, WEIGHT=weight is not None, BIAS=bias is not None,
            RETRY=retry, TILE=padded, ROW=row, VEC=shape.vector, num_warps=_warps(padded // 512),
        )  # fmt: skip


class SurveyBuffers:
    """The buffers between the three kernels that select a median: cuts, tallies, collected values and moments."""

    def __init__(self, x: Tensor, shape: Shape) -> None:
        self.plan: SurveyPlan = survey_plan(shape)
        cut, channels = self.plan.cut, shape.channels

        def empty(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(size, device=x.device, dtype=dtype)

        self.cuts = empty(2 * channels)
        self.scratch = empty(cut.blocks * cut.parts * cut.places * cut.channels * self.plan.room)
        self.collected = empty(channels * self.plan.capacity)
        self.tallies = empty(4 * channels, dtype=torch.int32)
        self.moments = empty(2, channels * cut.parts, dtype=torch.float64)


def bracket(x: Tensor, deviations: bool, saved: Saved, buffers: SurveyBuffers, shape: Shape) -> None:
    """Write two cuts per channel that very probably enclose the median of x, or of |x − centre| for ``deviations``."""
    samples = buffers.plan.samples
    survey.bracket[(shape.channels,)](
        x, saved.centre, buffers.cuts, buffers.tallies, saved.finite, saved.finite_count, *shape[:3],
        *buffers.plan.ranks, MAD=deviations, M=samples, BATCH=next_power_of_2(shape.images), LAST=shape.last,
        num_warps=_warps(samples // 256),
    )  # fmt: skip


def collect(x: Tensor, deviations: bool, saved: Saved, buffers: SurveyBuffers) -> None:
    """Read everything once: tally it, collect what is between the cuts, and sum moments."""
    cut = buffers.plan.cut
    survey.survey[cut.grid](
        x, saved.centre, buffers.cuts, buffers.scratch, buffers.collected, buffers.tallies, *buffers.moments,
        saved.finite, saved.finite_count, *cut.sizes, buffers.plan.capacity, buffers.plan.limit, 1, MAD=deviations,
        ROOM=buffers.plan.room, **cut.options(),
    )  # fmt: skip


def finish(
    x: Tensor, deviations: bool, factor: float, running: Pair | None, saved: Saved, buffers: SurveyBuffers,
    shape: Shape, spec: Spec,
) -> None:  # fmt: skip
    """Write the median and the variance, and mix them; for ``deviations``, the MAD and ``factor`` times its square."""
    about, capacity, parts = saved.centre, buffers.plan.capacity, buffers.plan.cut.parts
    total = saved.slopes if deviations else saved.deviation_sum
    selected = saved.selected if saved.selected.dim() == 1 else saved.selected[int(deviations)]
    fits = capacity <= tiling.COLLECTED_IN_REGISTERS
    chunk = next_power_of_2(capacity) if fits else 8192
    channel = plan(shape._replace(last=False), tiling.CHANNEL_TILE, tiling.CHANNEL_WARPS, 1)
    median.finish[(shape.channels,)](
        x, about, buffers.cuts, buffers.collected, buffers.tallies, *buffers.moments, saved.finite, saved.finite_count,
        *(running or (about, about)), saved.centre, saved.variance, total, selected, saved.used_centre,
        saved.inverse_std, *shape[:3], capacity, parts, spec.eps, spec.batch_weight, factor, MAD=deviations,
        RUNNING=running is not None, PARTS=next_power_of_2(parts), FITS=fits, CHUNK=chunk, TILE=channel.places,
        ROW=channel.row, LAST=shape.last, num_warps=_warps(chunk // 512) if fits else 16,
    )  # fmt: skip


def normalise_all(
    x: Tensor, y: Tensor, weight: Tensor | None, bias: Tensor | None, saved: Saved, shape: Shape, kernel: str
) -> None:
    """Read everything once more and normalise it; find where the median, and the MAD, first occur."""
    cut = plan(shape, tiling.TILE, tiling.WARPS, tiling.WAVES)
    centre, is_mad = saved.centre, kernel in MAD_FACTORS
    normalise.normalise[cut.grid](
        x, y, centre if weight is None else weight, centre if bias is None else bias, centre,
        saved.slopes if is_mad else centre, saved.used_centre, saved.inverse_std, saved.selected, saved.finite,
        saved.finite_count, *cut.sizes, WEIGHT=weight is not None, BIAS=bias is not None,
        FIND=kernel != "image_median", MAD=is_mad, **cut.options(),
    )  # fmt: skip


def image_moments(x: Tensor, saved: Saved, shape: Shape) -> None:
    """Write each image's own mean and variance."""
    if shape.last:
        planes = min(next_power_of_2(shape.channels), tiling.NEIGHBOURS)
        row = min(shape.row, tiling.TILE // planes)
        programs = shape.images * cdiv(shape.channels, planes)
    else:
        row = min(shape.row, tiling.TILE)
        planes = tiling.TILE // row
        programs = cdiv(shape.images * shape.channels, planes)
    images.image_moments[(programs,)](
        x, saved.image_means, saved.image_variances, saved.finite, saved.finite_count, *shape[:3], PLANES=planes,
        ROW=row, ONE_ROW=shape.size <= row, **shape.options(), num_warps=4,
    )  # fmt: skip


def image_statistics(running: Pair | None, saved: Saved, shape: Shape, spec: Spec) -> None:
    """Write the medians over images, and mix them."""
    images.image_statistics[(shape.channels,)](
        saved.image_means, saved.image_variances, saved.finite, saved.finite_count,
        *(running or (saved.centre, saved.centre)), saved.centre, saved.variance, saved.deviation_sum,
        saved.used_centre, saved.inverse_std, saved.selected, saved.slopes, *shape[:3], spec.eps, spec.batch_weight,
        RUNNING=running is not None, BATCH=next_power_of_2(shape.images),
        num_warps=1 if shape.images <= 256 else 4,
    )  # fmt: skip


# --- backward ---------------------------------------------------------------------------------------------------------


def reduce(g: Tensor, x: Tensor, saved: Saved, shape: Shape) -> Tensor:
    """Return the sums of g and of g · (x − used centre), ``(2, parts, C)`` in float64."""
    cut = plan(shape, tiling.TILE, tiling.WARPS, tiling.REDUCE_WAVES_LAST if shape.last else tiling.WAVES)
    sums = torch.empty(2, cut.parts, shape.channels, device=x.device, dtype=torch.float64)
    gradient.reduce[cut.grid](
        g, x, saved.used_centre, saved.finite, saved.finite_count, *sums, *cut.sizes, **cut.options()
    )
    return sums


def add_parts(sums: Tensor) -> Tensor:
    """Return the sums over all parts, ``(2, 1, C)``."""
    _, parts, channels = sums.shape
    totals = torch.empty(2, 1, channels, device=sums.device, dtype=torch.float64)
    rows = next_power_of_2(parts)
    width = max(1, 4096 // rows)
    gradient.add_parts[(cdiv(2 * channels, width),)](
        sums, totals, channels, parts, PARTS=rows, WIDTH=width, num_warps=8
    )
    return totals


def combine(
    g: Tensor, x: Tensor, dx: Tensor, weight: Tensor | None, saved: Saved, sums: Tensor | None, d_weight: Tensor,
    d_bias: Tensor, shape: Shape, batch_weight: float, mean: bool, mad: bool, factor: float,
) -> None:  # fmt: skip
    """Write the gradients where statistics are of whole channels. Without ``sums``, each program makes its own."""
    cut = plan(shape, tiling.TILE, tiling.WARPS, 0 if sums is None else tiling.WAVES)
    whole = sums is None
    sums = saved.inverse_std.new_empty(2, 1, shape.channels) if sums is None else sums
    gradient.combine[cut.grid](
        g, x, dx, saved.used_centre if weight is None else weight, saved.centre, saved.slopes if mad else saved.centre,
        saved.deviation_sum, saved.selected, saved.used_centre, saved.inverse_std, saved.finite, saved.finite_count,
        *sums, d_weight, d_bias, *cut.sizes, sums.shape[1], batch_weight, factor, WEIGHT=weight is not None, MEAN=mean,
        MAD=mad, WHOLE=whole, PARTS=next_power_of_2(sums.shape[1]), **cut.options(),
    )  # fmt: skip


def image_gradient(
    g: Tensor, x: Tensor, dx: Tensor, weight: Tensor | None, saved: Saved, sums: Tensor, d_weight: Tensor,
    d_bias: Tensor, shape: Shape, batch_weight: float,
) -> None:  # fmt: skip
    """Write w · r · g; channels last, also what the statistics' gradients add."""
    cut = plan(shape, tiling.TILE, tiling.WARPS, tiling.WAVES, single=shape.last)
    images.image_gradient[cut.grid](
        g, x, dx, saved.used_centre if weight is None else weight, saved.image_means, saved.selected, saved.slopes,
        saved.inverse_std, saved.finite, saved.finite_count, *sums, d_weight, d_bias, *cut.sizes, sums.shape[1],
        batch_weight, WEIGHT=weight is not None, PARTS=next_power_of_2(sums.shape[1]), **cut.options(),
    )  # fmt: skip


def selected_image_gradient(
    g: Tensor, x: Tensor, dx: Tensor, weight: Tensor | None, saved: Saved, d_weight: Tensor, d_bias: Tensor,
    shape: Shape, batch_weight: float,
) -> None:  # fmt: skip
    """Write the gradient of each channel's six selected images again, with what the statistics' gradients add."""
    images.selected_image_gradient[(shape.channels, 6)](
        g, x, dx, saved.used_centre if weight is None else weight, saved.image_means, saved.selected, saved.slopes,
        saved.inverse_std, d_weight, d_bias, saved.finite_count, *shape[:3], batch_weight, WEIGHT=weight is not None,
        ROW=min(shape.row, 1024), VEC=shape.vector, num_warps=2,
    )  # fmt: skip
