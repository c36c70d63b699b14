"""What the Triton kernels are launched with: one function per kernel, which returns a symbolic ``Launch``.

A launch is of a shape, not of tensors: its arguments are names, which ``plans`` gives a meaning. Activations are ``x``,
``y``, ``g`` and ``dx``, dense ``(B, C, *)`` in the memory format of ``x``; small tensors are places of a ``Layout``.
Where a kernel ignores an argument, such as the weight of a layer without one, it gets some tensor per channel; or None,
which is compiled in, where launches without a ReLU would otherwise have an argument more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..reference import MAD_FACTORS
from . import gradient, images, median, normalise, small_channel, survey, tiling
from .tiling import Plan, Shape, SurveyPlan, cdiv, next_power_of_2, plan

EPS, BATCH_WEIGHT = "eps", "batch_weight"
"""The names of the two numbers that are given with each call."""
Argument = str | int | float | None
"""The name of a tensor or of a number, a number that the shape decides, or nothing."""


class Launch(NamedTuple):
    """A launch of one kernel, for tensors that are still to be named."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Argument, ...]
    constants: Mapping[str, Any]
    """Compile-time constants, and the number of warps."""


class Fill(NamedTuple):
    """Set all of an int32 tensor to a value."""

    name: str
    value: int
    size: int


Step = Launch | Fill


class Given(NamedTuple):
    """Which optional tensors a layer has."""

    weight: bool
    bias: bool
    running: bool
    relu: bool = False
    """Whether a ReLU follows, and is computed with the rest."""
    residual: bool = False
    """Whether another activation is added before it."""

    def running_or(self, other: str) -> tuple[str, str]:
        """Return the names of the running statistics, or another one for both."""
        return ("running_centre", "running_variance") if self.running else (other, other)

    @property
    def residual_or_none(self) -> str | None:
        """The name of the residual, or None."""
        return "residual" if self.residual else None


def _warps(number: int) -> int:
    """Return the number of warps nearest to this that a program can have."""
    return max(1, min(16, number))


# --- forward ----------------------------------------------------------------------------------------------------------


def normalise_small_channels(shape: Shape, given: Given) -> list[Step]:
    """Select medians, mix and normalise in one kernel; ``x`` is contiguous. The second launch is for NaN and inf."""
    weight, bias = "weight" if given.weight else "centre", "bias" if given.bias else "centre"
    out = ("centre", "variance", "deviation_sum", "selected", "used_centre", "inverse_std")
    return [
        Launch(
            small_channel.normalise_small_channels,
            (shape.channels,),
            (
                "x", "y", given.residual_or_none, weight, bias, *given.running_or("centre"), *out, "finite",
                "finite_count", *shape[:3], EPS, BATCH_WEIGHT,
            ),
            {
                "RUNNING": given.running, "WEIGHT": given.weight, "BIAS": given.bias, "RETRY": retry,
                "ADD": given.residual, "RELU": given.relu, "TILE": shape.padded, "ROW": shape.row,
                "VEC": shape.vector, "num_warps": _warps(shape.padded // 512),
            },
        )
        for retry in (False, True)
    ]  # fmt: skip


def bracket(shape: Shape, survey_plan: SurveyPlan, deviations: bool) -> Launch:
    """Write two cuts per channel that very probably enclose the median of x, or of |x − centre| for ``deviations``."""
    samples = survey_plan.samples
    return Launch(
        survey.bracket,
        (shape.channels,),
        ("x", "centre", "cuts", "tallies", "finite", "finite_count", *shape[:3], *survey_plan.ranks),
        {
            "MAD": deviations, "M": samples, "BATCH": next_power_of_2(shape.images), "LAST": shape.last,
            "num_warps": _warps(samples // 256),
        },
    )  # fmt: skip


def collect(survey_plan: SurveyPlan, deviations: bool) -> Launch:
    """Read everything once: tally it, collect what is between the cuts, and sum moments."""
    cut = survey_plan.cut
    return Launch(
        survey.survey,
        cut.grid,
        (
            "x", "centre", "cuts", "collection", "collected", "tallies", "moment_sums", "moment_squares", "finite",
            "finite_count", *cut.sizes, survey_plan.capacity, survey_plan.limit, 1,
        ),
        {"MAD": deviations, "ROOM": survey_plan.room, **cut.options()},
    )  # fmt: skip


def finish(shape: Shape, survey_plan: SurveyPlan, deviations: bool, factor: float, given: Given) -> Launch:
    """Write the median and the variance, and mix them; for ``deviations``, the MAD and ``factor`` times its square."""
    capacity, parts = survey_plan.capacity, survey_plan.cut.parts
    total, selected = ("slopes", "selected_deviation") if deviations else ("deviation_sum", "selected")
    fits = capacity <= tiling.COLLECTED_IN_REGISTERS
    chunk = next_power_of_2(capacity) if fits else 8192
    channel = plan(shape._replace(last=False), tiling.CHANNEL_TILE, tiling.CHANNEL_WARPS, 1)
    return Launch(
        median.finish,
        (shape.channels,),
        (
            "x", "centre", "cuts", "collected", "tallies", "moment_sums", "moment_squares", "finite", "finite_count",
            *given.running_or("centre"), "centre", "variance", total, selected, "used_centre", "inverse_std",
            *shape[:3], capacity, parts, EPS, BATCH_WEIGHT, factor,
        ),
        {
            "MAD": deviations, "RUNNING": given.running, "PARTS": next_power_of_2(parts), "FITS": fits,
            "CHUNK": chunk, "TILE": channel.places, "ROW": channel.row, "LAST": shape.last,
            "num_warps": _warps(chunk // 512) if fits else 16,
        },
    )  # fmt: skip


def normalise_all(shape: Shape, kernel: str, given: Given) -> Launch:
    """Read everything once more and normalise it; find where the median, and the MAD, first occur."""
    cut = plan(shape, tiling.TILE, tiling.WARPS, tiling.WAVES)
    is_mad = kernel in MAD_FACTORS
    return Launch(
        normalise.normalise,
        cut.grid,
        (
            "x", "y", given.residual_or_none, "weight" if given.weight else "centre",
            "bias" if given.bias else "centre", "centre", "slopes" if is_mad else "centre", "used_centre",
            "inverse_std", "selected", "finite", "finite_count", *cut.sizes,
        ),
        {
            "WEIGHT": given.weight, "BIAS": given.bias, "FIND": kernel != "image_median", "MAD": is_mad,
            "ADD": given.residual, "RELU": given.relu, **cut.options(),
        },
    )  # fmt: skip


def image_moments(shape: Shape) -> Launch:
    """Write each image's own mean and variance."""
    if shape.last:
        planes = min(next_power_of_2(shape.channels), tiling.NEIGHBOURS)
        row = min(shape.row, tiling.TILE // planes)
        programs = shape.images * cdiv(shape.channels, planes)
    else:
        row = min(shape.row, tiling.TILE)
        planes = tiling.TILE // row
        programs = cdiv(shape.images * shape.channels, planes)
    return Launch(
        images.image_moments,
        (programs,),
        ("x", "image_means", "image_variances", "finite", "finite_count", *shape[:3]),
        {"PLANES": planes, "ROW": row, "ONE_ROW": shape.size <= row, **shape.options(), "num_warps": 4},
    )


def image_statistics(shape: Shape, given: Given) -> Launch:
    """Write the medians over images, and mix them."""
    return Launch(
        images.image_statistics,
        (shape.channels,),
        (
            "image_means", "image_variances", "finite", "finite_count", *given.running_or("centre"), "centre",
            "variance", "deviation_sum", "used_centre", "inverse_std", "selected", "slopes", *shape[:3], EPS,
            BATCH_WEIGHT,
        ),
        {
            "RUNNING": given.running, "BATCH": next_power_of_2(shape.images),
            "num_warps": 1 if shape.images <= 256 else 4,
        },
    )  # fmt: skip


# --- backward ---------------------------------------------------------------------------------------------------------

MASKED = "masked"
"""The gradient of the output, behind the ReLU."""


def reduction(shape: Shape) -> Plan:
    """Return how the activation is cut for ``reduce``; its parts are those of the sums."""
    return plan(shape, tiling.TILE, tiling.WARPS, tiling.REDUCE_WAVES_LAST if shape.last else tiling.WAVES)


def reduce(shape: Shape, relu: bool) -> Launch:
    """Write the sums of g and of g · (x − used centre), ``(parts, C)`` each in float64; with ``relu``, and g masked."""
    cut = reduction(shape)
    output, masked = ("y", MASKED) if relu else (None, None)
    arguments = (
        "g", "x", output, masked, "used_centre", "finite", "finite_count", "sums_g", "sums_gx", *cut.sizes,
    )  # fmt: skip
    return Launch(gradient.reduce, cut.grid, arguments, {"RELU": relu, **cut.options()})


def add_parts(shape: Shape) -> Launch:
    """Write the sums over all parts."""
    rows = next_power_of_2(reduction(shape).parts)
    width = max(1, 4096 // rows)
    return Launch(
        gradient.add_parts,
        (cdiv(2 * shape.channels, width),),
        ("sums", "totals", shape.channels, reduction(shape).parts),
        {"PARTS": rows, "WIDTH": width, "num_warps": 8},
    )


def combine(
    shape: Shape,
    g: str,
    weight: bool,
    sums: tuple[str, str] | None,
    parts: int,
    mean: bool,
    mad: bool,
    factor: float,
    relu: bool,
    residual: bool,
) -> Launch:
    """Write the gradients where statistics are of whole channels. Without ``sums``, each program makes its own.

    With ``relu`` it also masks g, and writes it where there is a ``residual``.
    """
    cut = plan(shape, tiling.TILE, tiling.WARPS, 0 if sums is None else tiling.WAVES)
    return Launch(
        gradient.combine,
        cut.grid,
        (
            g, "x", "y" if relu else None, MASKED if relu and residual else None, "dx",
            "weight" if weight else "used_centre", "centre", "slopes" if mad else "centre", "deviation_sum",
            "selected", "used_centre", "inverse_std", "finite", "finite_count",
            *(sums or ("centre", "variance")), "d_weight", "d_bias", *cut.sizes, parts, BATCH_WEIGHT, factor,
        ),
        {
            "WEIGHT": weight, "MEAN": mean, "MAD": mad, "WHOLE": sums is None, "PARTS": next_power_of_2(parts),
            "RELU": relu, "KEEP": relu and residual, **cut.options(),
        },
    )  # fmt: skip


def image_gradient(shape: Shape, g: str, weight: bool, sums: tuple[str, str], parts: int) -> Launch:
    """Write w · r · g; channels last, also what the statistics' gradients add."""
    cut = plan(shape, tiling.TILE, tiling.WARPS, tiling.WAVES, single=shape.last)
    return Launch(
        images.image_gradient,
        cut.grid,
        (
            g, "x", "dx", "weight" if weight else "used_centre", "image_means", "selected", "slopes", "inverse_std",
            "finite", "finite_count", *sums, "d_weight", "d_bias", *cut.sizes, parts, BATCH_WEIGHT,
        ),
        {"WEIGHT": weight, "PARTS": next_power_of_2(parts), **cut.options()},
    )  # fmt: skip


def selected_image_gradient(shape: Shape, g: str, weight: bool) -> Launch:
    """Write the gradient of each channel's six selected images again, with what the statistics' gradients add."""
    return Launch(
        images.selected_image_gradient,
        (shape.channels, 6),
        (
            g, "x", "dx", "weight" if weight else "used_centre", "image_means", "selected", "slopes", "inverse_std",
            "d_weight", "d_bias", "finite_count", *shape[:3], BATCH_WEIGHT,
        ),
        {"WEIGHT": weight, "ROW": min(shape.row, 1024), "VEC": shape.vector, "num_warps": 2},
    )  # fmt: skip
