"""MedBN on a GPU near BatchNorm's price: the exact median by bracketing, statistics and normalisation, in Triton.

Input is a contiguous ``(B, C, S)``. A channel that fits into a program's registers takes one kernel each way: the
median is found there bit by bit, which takes 32 counts and no memory traffic. For a larger one,

1. ``_bracket`` takes two values from a jittered sample that very probably enclose the median, and divides what is
   between them,
2. ``_survey`` reads everything: it counts what is below each division, and sums shifted moments,
3. ``_collect`` reads everything again and keeps the little that is between the two divisions around the median,
4. ``_finish`` finds the median there or, where the bracket missed it or an image is not finite, bit by bit over the
   whole channel; no host waits for that decision,
5. ``_apply`` reads everything once more, normalises, and finds the median's first place;

and two kernels go backward. Medians over images take one pass for the moments of images, and the same two backward.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from .gpu_kernels import (
    _apply,
    _bracket,
    _choose,
    _collect,
    _combine,
    _finish,
    _image_combine,
    _image_finish,
    _image_moments,
    _reduce,
    _small_backward,
    _small_forward,
    _survey,
)

SMALL = 16384
"""The padded size up to which a channel is kept in registers."""
TILE = 2048
WARPS = 4
WAVES = 24
PER_WARP = 512
PROCESSORS = 132
FINE, FINE_WARPS, FINE_WAVES = 128, 1, 64
CAPACITY = 16384
"""How many values of the median's bin are kept; with more, the median is found over the whole channel."""
Z = 5.0
"""Half the width of the bracket, in standard deviations of the median's rank in the sample."""


class Statistics(NamedTuple):
    """What a forward pass found, per channel, and which images are finite."""

    centre: Tensor
    variance: Tensor
    deviation: Tensor
    """The sum of x − centre."""
    place: Tensor
    """Where the median stands first, in (b, s) order."""
    finite: Tensor
    """(B,) of 0 and 1."""
    counted: Tensor
    """(1,): how many images are finite."""


# --- launching --------------------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """How a shape is cut."""

    small: bool
    rows: int
    columns: int
    images: int
    parts: int
    warps: int


def plan(images: int, channels: int, size: int, small: bool = True, fine: bool = False) -> Plan:
    """How to cut ``(B, C, S)``: one program per channel where that is allowed, or several that share its images."""
    padded = triton.next_power_of_2(images) * triton.next_power_of_2(size)
    if small and padded <= SMALL:
        return Plan(True, triton.next_power_of_2(images), triton.next_power_of_2(size), images, 1, _warps(padded))
    tile, warps, waves = (FINE, FINE_WARPS, FINE_WAVES) if fine else (TILE, WARPS, WAVES)
    columns = min(triton.next_power_of_2(size), tile)
    rows = max(1, min(tile // columns, triton.next_power_of_2(images)))
    wanted = max(1, waves * PROCESSORS // channels)
    each = max(rows, triton.cdiv(triton.cdiv(images, wanted), rows) * rows)
    return Plan(False, rows, columns, each, triton.cdiv(images, each), warps)


def _warps(padded: int) -> int:
    return max(1, min(16, padded // PER_WARP))


def supported(x: Tensor) -> bool:
    """Whether these kernels take this tensor."""
    kinds = (torch.float32, torch.float16, torch.bfloat16)
    return x.dtype in kinds and x.dim() >= 2 and x.numel() > 0 and len(x) <= 4096 and x[:, 0].numel() < 2**31 - 1


def forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    held: tuple[Tensor, Tensor] | None,
    share: float,
    eps: float,
) -> tuple[Tensor, Statistics, Tensor, Tensor]:
    """Normalise with the median: the output, what was found, and the centre and 1/σ that were used."""
    images, channels = x.shape[:2]
    size = x.numel() // (images * channels)
    cut = plan(images, channels, size)
    y = torch.empty_like(x)
    kind = {"device": x.device, "dtype": torch.float32}
    centre, variance, used, scale = torch.empty(4, channels, **kind).unbind()  # type: ignore[call-overload]
    deviation = torch.empty(channels, device=x.device, dtype=torch.float64)
    index = torch.empty(channels, device=x.device, dtype=torch.int32)
    finite = torch.ones(images, device=x.device, dtype=torch.int32)
    counted = torch.full((1,), images, device=x.device, dtype=torch.int32)
    dummy = centre
    ends = held or (dummy, dummy)
    flags: dict[str, Any] = {"WEIGHT": weight is not None, "BIAS": bias is not None}
    parameters = (dummy if weight is None else weight, dummy if bias is None else bias)
    found = (centre, variance, deviation, index, used, scale)
    if cut.small:
        for again in (False, True):
            _small_forward[(channels,)](
                x, y, *parameters, *ends, *found, finite, counted, images, channels, size, eps, share,
                HELD=held is not None, **flags, AGAIN=again, BB=cut.rows, BS=cut.columns, num_warps=cut.warps,
            )  # fmt: skip
        return y, Statistics(centre, variance, deviation, index, finite, counted), used, scale
    values = images * size
    samples = 1024 if values < 100_000 else 4096 if values < 1_000_000 else 16384
    middle = ((values - 1) // 2 + 0.5) * samples / values
    width = Z * samples**0.5 / 2
    ranks = max(0, int(middle - width)), min(samples - 1, int(middle + width) + 1)
    cap = min(values, CAPACITY)
    fine = plan(images, channels, size, small=False, fine=True)
    cuts = torch.empty(channels * 16, **kind)  # type: ignore[call-overload]
    below = torch.empty(channels * fine.parts * 16, device=x.device, dtype=torch.int32)
    moments = torch.empty(2, channels * fine.parts, device=x.device, dtype=torch.float64)
    chosen, rank = torch.empty(2, channels, device=x.device, dtype=torch.int32).unbind()
    filled = torch.zeros(2 * channels, device=x.device, dtype=torch.int32)
    collected = torch.empty(channels * cap, **kind)  # type: ignore[call-overload]
    shape = (images, channels, size)
    _bracket[(channels,)](
        x, cuts, *shape, values, max(1, values // samples), *ranks, SAMPLES=samples, num_warps=samples // 512 or 1
    )
    grid, around = (channels, cut.parts), (channels, fine.parts)
    tile = _tile(cut)
    _survey[around](x, cuts, below, *moments, finite, counted, *shape, fine.images, **_tile(fine))
    _choose[(channels,)](below, counted, rank, chosen, images, size, fine.parts, num_warps=1)
    _collect[around](x, cuts, chosen, collected, filled, *shape, fine.images, cap, **_tile(fine))
    _finish[(channels,)](
        x, cuts, *moments, chosen, rank, collected, filled, finite, counted, *ends, *found, *shape, cap, fine.parts,
        eps, share, HELD=held is not None, PARTS=triton.next_power_of_2(fine.parts), BB=cut.rows, BS=cut.columns,
        CHUNK=min(2048, triton.next_power_of_2(cap)), num_warps=4,
    )  # fmt: skip
    _apply[grid](x, y, *parameters, centre, used, scale, index, finite, *shape, cut.images, **flags, FIND=True, **tile)
    return y, Statistics(centre, variance, deviation, index, finite, counted), used, scale


def backward(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    found: Statistics,
    used: Tensor,
    scale: Tensor,
    share: float,
    mean: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of input, weight and bias in closed form. ``mean`` takes the mean's for those of the statistics."""
    images, channels = x.shape[:2]
    size = x.numel() // (images * channels)
    cut = plan(images, channels, size)
    g = g.contiguous()
    dx = torch.empty_like(x)
    d_weight, d_bias = torch.empty(2, channels, device=x.device, dtype=torch.float32).unbind()
    given = used if weight is None else weight
    flags: dict[str, Any] = {"WEIGHT": weight is not None, "MEAN": mean}
    kept = (found.centre, found.deviation, found.place, used, scale, found.finite, found.counted)
    shape = (images, channels, size)
    if cut.small:
        _small_backward[(channels,)](
            g, x, dx, given, *kept, d_weight, d_bias, *shape, share, **flags, BB=cut.rows, BS=cut.columns,
            num_warps=cut.warps,
        )  # fmt: skip
        return dx, d_weight, d_bias
    grid = (channels, cut.parts)
    tile = _tile(cut)
    sums = torch.empty(2, channels * cut.parts, device=x.device, dtype=torch.float64)
    _reduce[grid](g, x, used, found.finite, *sums, *shape, cut.images, **tile)
    _combine[grid](
        g, x, dx, given, *kept, *sums, d_weight, d_bias, *shape, cut.images, cut.parts, share, **flags,
        PARTS=triton.next_power_of_2(cut.parts), **tile,
    )  # fmt: skip
    return dx, d_weight, d_bias


# --- medians over images ----------------------------------------------------------------------------------------------


class Images(NamedTuple):
    """What ``image_forward`` keeps beside its statistics: each image's mean, the images at the middle, their slopes."""

    means: Tensor
    chosen: Tensor
    slopes: Tensor


def image_forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    held: tuple[Tensor, Tensor] | None,
    share: float,
    eps: float,
) -> tuple[Tensor, Statistics, Tensor, Tensor, Images]:
    """Normalise with medians over images; like ``forward``."""
    images, channels = x.shape[:2]
    size = x.numel() // (images * channels)
    cut = plan(images, channels, size, small=False)
    y = torch.empty_like(x)
    kind = {"device": x.device, "dtype": torch.float32}
    centre, variance, used, scale = torch.empty(4, channels, **kind).unbind()  # type: ignore[call-overload]
    deviation = torch.empty(channels, device=x.device, dtype=torch.float64)
    finite = torch.ones(images, device=x.device, dtype=torch.int32)
    counted = torch.full((1,), images, device=x.device, dtype=torch.int32)
    means, withins = torch.empty(2, images, channels, **kind).unbind()  # type: ignore[call-overload]
    chosen = torch.empty(6, channels, device=x.device, dtype=torch.int32)
    slopes = torch.empty(2, channels, **kind)  # type: ignore[call-overload]
    columns = min(triton.next_power_of_2(size), TILE)
    planes = max(1, TILE // columns)
    shape = (images, channels, size)
    _image_moments[(triton.cdiv(images * channels, planes),)](
        x, means, withins, finite, counted, images * channels, channels, size, BP=planes, BS=columns
    )
    ends = held or (centre, centre)
    _image_finish[(channels,)](
        means, withins, finite, counted, *ends, centre, variance, deviation, used, scale, chosen, slopes, *shape, eps,
        share, HELD=held is not None, BB=triton.next_power_of_2(images), num_warps=1 if images <= 256 else 4,
    )  # fmt: skip
    tile = _tile(cut)
    _apply[(channels, cut.parts)](
        x, y, centre if weight is None else weight, centre if bias is None else bias, centre, used, scale, chosen,
        finite, *shape, cut.images, WEIGHT=weight is not None, BIAS=bias is not None, FIND=False, **tile,
    )  # fmt: skip
    found = Statistics(centre, variance, deviation, chosen[0], finite, counted)
    return y, found, used, scale, Images(means, chosen, slopes)


def image_backward(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    found: Statistics,
    used: Tensor,
    scale: Tensor,
    share: float,
    kept: Images,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients in closed form: a channel's statistics come from six images at the most."""
    images, channels = x.shape[:2]
    size = x.numel() // (images * channels)
    cut = plan(images, channels, size, small=False)
    g = g.contiguous()
    dx = torch.empty_like(x)
    d_weight, d_bias = torch.empty(2, channels, device=x.device, dtype=torch.float32).unbind()
    sums = torch.empty(2, channels * cut.parts, device=x.device, dtype=torch.float64)
    shape, tile, grid = (images, channels, size), _tile(cut), (channels, cut.parts)
    _reduce[grid](g, x, used, found.finite, *sums, *shape, cut.images, **tile)
    _image_combine[grid](
        g, x, dx, used if weight is None else weight, *kept, scale, found.finite, *sums, d_weight, d_bias, *shape,
        cut.images, cut.parts, share, WEIGHT=weight is not None, PARTS=triton.next_power_of_2(cut.parts), **tile,
    )  # fmt: skip
    return dx, d_weight, d_bias


def _tile(cut: Plan) -> dict[str, int]:
    return {"BB": cut.rows, "BS": cut.columns, "num_warps": cut.warps}
