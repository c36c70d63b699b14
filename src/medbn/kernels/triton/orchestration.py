"""MedBN on a GPU at BatchNorm's price: the exact median by bracketing, statistics and normalisation, in Triton.

Input is a dense ``(B, C, *)``, contiguous or channels_last, and results have its memory format. A channel that fits
into a program's registers takes one kernel forward: the median is searched there. For a larger one,

1. ``_bracket`` takes two values from a jittered sample that very probably enclose the median,
2. ``_survey`` reads everything: it counts what is below, keeps the little that is between, and sums shifted moments,
3. ``_finish`` finds the median in what was kept or, where the bracket missed it or an image is not finite, over the
   whole channel; no host waits for that decision,
4. ``_apply`` reads everything once more, normalises, and finds the median's first place;

so that forward is two reads and one write, as BatchNorm's is. Two kernels go backward, or one where a program takes
whole channels. The MAD is the median of deviations: steps 1 to 3 once more, with |x − median| for x, before ``_apply``
finds the first places of both. Medians over images take one pass for the moments of images, and their backward writes
``w · r · g`` before it visits the six images that a channel's statistics come from.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from ..reference import MAD_FACTORS
from ..saved import Saved, Spec
from .images import _image_finish, _image_moments, _image_scale, _image_touch
from .median import _bracket, _finish, _small_forward, _survey
from .passes import _apply, _combine, _reduce, _total

SMALL, LESS_SMALL = 4096, 16384
"""The padded size up to which a channel is kept in registers; and where all of them run at once, two to a processor."""
TILE, WARPS, WAVES = 2048, 4, 24
SURVEY_TILE, SURVEY_WARPS, SURVEY_WAVES = 256, 1, 64
TOGETHER = 32
"""How many neighbouring channels a tile of channels_last has."""
WHOLE = 16384
"""The size up to which one program takes a whole channel backward, reading it twice."""
FIT = 16384
"""How many collected values are searched in registers."""
SAMPLES = ((16_000, 1024), (100_000, 2048), (1_000_000, 4096))
"""How large a sample a channel of up to so many values gives; larger ones give 8192."""
SLACK = 64
"""How many values more than expected a program collects before it looks for ties."""
GATHERED = 64
"""How many parts of a sum every program adds up for itself."""
Z = 4.0
"""Half the width of the bracket, in standard deviations of the median's rank in the sample."""


class Statistics(NamedTuple):
    """What a forward pass found, per channel, and which images are finite."""

    centre: Tensor
    variance: Tensor
    deviation_sum: Tensor
    """The sum of x − centre."""
    place: Tensor
    """Where the median stands first, in (b, s) order."""
    finite: Tensor
    """(B,) of 0 and 1."""
    finite_count: Tensor
    """(1,): how many images are finite."""


# --- how a shape is cut -----------------------------------------------------------------------------------------------


class Shape(NamedTuple):
    """A dense activation."""

    images: int
    channels: int
    size: int
    last: bool
    processors: int

    @classmethod
    def of(cls, x: Tensor) -> Shape:
        """See an activation as ``(B, C, S)``."""
        images, channels = x.shape[:2]
        size = x.numel() // (images * channels)
        return cls(images, channels, size, size > 1 and channels > 1 and not x.is_contiguous(), _processors(x.device))

    @property
    def values(self) -> int:
        """How many values a channel has."""
        return self.images * self.size

    @property
    def vector(self) -> int:
        """How many neighbours can be loaded at once."""
        return next(v for v in (8, 4, 2, 1) if self.last or self.size % v == 0)

    def memory(self) -> dict[str, Any]:
        """What kernels want to know of it."""
        return {"LAST": self.last, "VEC": 1 if self.last else self.vector}


class Plan(NamedTuple):
    """How a shape is cut into tiles, and its images, or as many parts of them, among programs."""

    shape: Shape
    places: int
    row: int
    channels: int
    blocks: int
    parts: int
    split: int
    warps: int

    @property
    def grid(self) -> tuple[int, int]:
        """Programs."""
        return self.blocks, self.parts

    @property
    def sizes(self) -> tuple[int, int, int]:
        """B, C and S as kernels see them."""
        return self.shape.images * self.split, self.shape.channels, self.shape.size // self.split

    def tile(self) -> dict[str, Any]:
        """What is fixed when a kernel is compiled."""
        far = self.shape.values * self.shape.channels >= 2**31
        cut = {"T": self.places, "BS": self.row, "CB": self.channels, "FAR": far, "SPLIT": self.split}
        return cut | self.shape.memory() | {"num_warps": self.warps}


@lru_cache(4096)
def plan(shape: Shape, tile: int, warps: int, waves: float, single: bool = False) -> Plan:
    """Tiles of about that many values, and parts enough to fill the GPU that many times with programs.

    Where images alone are too few for that, channels_last allows to split them. ``single`` tiles are of one image.
    """
    channels = min(triton.next_power_of_2(shape.channels), TOGETHER) if shape.last else 1
    places = max(1, tile // channels)
    blocks = triton.cdiv(shape.channels, channels)
    wanted = max(1, int(waves * shape.processors) // blocks)
    split = 1
    if shape.last:
        pieces = [d for d in range(2, shape.size // 16 + 1) if shape.size % d == 0 and shape.images * d <= 2 * wanted]
        split = next((d for d in [1, *pieces] if shape.images * d >= wanted), max([1, *pieces]))
    size, images = shape.size // split, shape.images * split
    row = min(triton.next_power_of_2(size), places)
    rows = 1 if single else min(places // row, triton.next_power_of_2(images))
    return Plan(shape, rows * row, row, channels, blocks, min(wanted, triton.cdiv(images, rows)), split, warps)


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def dense(x: Tensor) -> Tensor:
    """The tensor itself where these kernels read it as it is, else a contiguous copy."""
    forms = {4: torch.channels_last, 5: torch.channels_last_3d}
    fits = x.is_contiguous() or (x.dim() in forms and x.is_contiguous(memory_format=forms[x.dim()]))
    return x if fits else x.contiguous()


def like(g: Tensor, x: Tensor) -> Tensor:
    """A gradient in the memory format of ``x``."""
    return g if g.stride() == x.stride() else torch.empty_like(x, dtype=g.dtype).copy_(g)


# --- the front door ---------------------------------------------------------------------------------------------------


def forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running: tuple[Tensor, Tensor] | None, spec: Spec
) -> tuple[Tensor, Saved]:
    """Normalise ``x``; return the output and what the backward pass needs."""
    given = (weight, bias, running, spec.batch_weight, spec.eps)
    image = dense(x)
    means = slopes = variances = None
    if spec.kernel == "image_median":
        y, per_channel, used, inverse_std, (means, selected, slopes, variances) = image_forward(image, *given)
    elif spec.kernel == "median":
        y, per_channel, used, inverse_std = median_forward(image, *given)
        selected = per_channel.place
    else:
        y, per_channel, used, inverse_std, (slopes, selected) = mad_forward(image, *given, MAD_FACTORS[spec.kernel])
    if image is not x:
        y = torch.empty_like(x).copy_(y)
    centre, variance, deviation_sum, _, finite, finite_count = per_channel
    others = (deviation_sum, selected, means, slopes, finite, finite_count, variances)
    return y, Saved(centre, variance, used, inverse_std, *others)


def backward(g: Tensor, x: Tensor, weight: Tensor | None, saved: Saved, spec: Spec) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of input, weight and bias; the last two in float32."""
    assert saved.finite is not None
    assert saved.finite_count is not None
    place = saved.selected if saved.slopes is None else saved.selected[0]
    per_channel = Statistics(saved.centre, saved.variance, saved.deviation_sum, place, saved.finite, saved.finite_count)
    image = dense(x)
    given = (g, image, weight, per_channel, saved.used_centre, saved.inverse_std, spec.batch_weight)
    if saved.slopes is None or spec.backward == "mean":
        dx, d_weight, d_bias = median_backward(*given, spec.backward == "mean")
    elif saved.image_means is None:
        dx, d_weight, d_bias = mad_backward(*given, Deviations(saved.slopes, saved.selected), MAD_FACTORS[spec.kernel])
    else:
        images = Images(saved.image_means, saved.selected, saved.slopes, saved.image_variances)
        dx, d_weight, d_bias = image_backward(*given, images)
    return dx if image is x else torch.empty_like(x).copy_(dx), d_weight, d_bias


def statistics(x: Tensor, kernel: str) -> tuple[Tensor, Tensor]:
    """Return the centre and the variance of each channel over the images that are finite."""
    _, saved = forward(x, None, None, None, Spec(kernel, 1.0, 0.0))
    return saved.centre, saved.variance


# --- the median -------------------------------------------------------------------------------------------------------


def median_forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    held: tuple[Tensor, Tensor] | None,
    share: float,
    eps: float,
) -> tuple[Tensor, Statistics, Tensor, Tensor]:
    """Normalise with the median: the output, what was found, and the centre and 1/σ that were used."""
    shape = Shape.of(x)
    images, channels, size = shape[:3]
    y = torch.empty_like(x)
    numbers = torch.empty(4, channels, device=x.device, dtype=torch.float32)
    centre, variance, used, scale = numbers.unbind()
    deviation = torch.empty(channels, device=x.device, dtype=torch.float64)
    index = torch.empty(channels, device=x.device, dtype=torch.int32)
    row = triton.next_power_of_2(size)
    padded = triton.next_power_of_2(images) * row
    small = padded <= SMALL or (padded <= LESS_SMALL and channels <= 2 * shape.processors and not shape.last)
    finite, counted = _flags(x, known=small)
    ends = held or (centre, centre)
    flags: dict[str, Any] = {"WEIGHT": weight is not None, "BIAS": bias is not None}
    parameters = (centre if weight is None else weight, centre if bias is None else bias)
    out = (centre, variance, deviation, index, used, scale)
    found = Statistics(centre, variance, deviation, index, finite, counted)
    if small:
        flat = x.contiguous()  # so little is copied faster than read across
        made = torch.empty_like(flat) if shape.last else y
        for again in (False, True):
            _small_forward[(channels,)](
                flat, made, *parameters, *ends, *out, finite, counted, images, channels, size, eps, share,
                HELD=held is not None, **flags, AGAIN=again, T=padded, BS=row, VEC=shape._replace(last=False).vector,
                num_warps=max(1, min(16, padded // 512)),
            )  # fmt: skip
        return y.copy_(made) if shape.last else y, found, used, scale
    _select(x, shape, centre, False, 0.0, ends if held else None, out, finite, counted, share, eps)
    cut = plan(shape, TILE, WARPS, WAVES)
    _apply[cut.grid](
        x, y, *parameters, centre, centre, used, scale, index, finite, counted, *cut.sizes, **flags, FIND=True,
        AWAY=False, **cut.tile(),
    )  # fmt: skip
    return y, found, used, scale


def _flags(x: Tensor, known: bool) -> tuple[Tensor, Tensor]:
    """What kernels note in which images are finite, and how many: all are, where that must be ``known`` beforehand."""
    images = len(x)
    finite, counted = (torch.empty(n, device=x.device, dtype=torch.int32) for n in (images, 1))
    return (finite.fill_(1), counted.fill_(images)) if known else (finite, counted)


def _select(
    x: Tensor,
    shape: Shape,
    about: Tensor,
    away: bool,
    factor: float,
    held: tuple[Tensor, Tensor] | None,
    out: tuple[Tensor, ...],
    finite: Tensor,
    counted: Tensor,
    share: float,
    eps: float,
) -> None:
    """The median of each channel, or with ``away`` that of |x − about|, into ``out``."""
    images, channels, size = shape[:3]
    values = shape.values
    cut = plan(shape, SURVEY_TILE, SURVEY_WARPS, SURVEY_WAVES)
    samples = next((m for upto, m in SAMPLES if values < upto), 8192)
    middle = ((values - 1) // 2 + 0.5) * samples / values
    width = Z * samples**0.5 / 2
    slack = max(1, int(width / 8))
    low, high = max(0, int(middle - width)), min(samples - 1, int(middle + width) + 1)
    windows = max(0, low - slack), low, high, min(samples - 1, high + slack)
    share_kept = (windows[3] - windows[0] + 1) / samples
    limit = int(1.5 * share_kept * values / cut.parts) + SLACK
    cap = min(values, cut.parts * limit)
    rows, pieces = triton.cdiv(cut.sizes[0], cut.parts), triton.cdiv(cut.sizes[2], cut.row)
    turns = triton.cdiv(rows, cut.places // cut.row) * pieces
    room = min(triton.next_power_of_2(turns), triton.next_power_of_2(int(2 * share_kept * turns) + 4))
    device = x.device
    cuts = torch.empty(2 * channels, device=device, dtype=torch.float32)
    scratch = torch.empty(cut.blocks * cut.parts * cut.places * cut.channels * room, device=device, dtype=torch.float32)
    collected = torch.empty(channels * cap, device=device, dtype=torch.float32)
    tallies = torch.empty(4 * channels, device=device, dtype=torch.int32)
    moments = torch.empty(2, channels * cut.parts, device=device, dtype=torch.float64)
    _bracket[(channels,)](
        x, about, cuts, tallies, finite, counted, images, channels, size, *windows, AWAY=away, M=samples,
        BB=triton.next_power_of_2(images), LAST=shape.last, num_warps=max(1, min(16, samples // 256)),
    )  # fmt: skip
    _survey[cut.grid](
        x, about, cuts, scratch, collected, tallies, *moments, finite, counted, *cut.sizes, cap, limit, 1, AWAY=away,
        ROOM=room, **cut.tile(),
    )  # fmt: skip
    fits = cap <= FIT
    chunk = triton.next_power_of_2(cap) if fits else 8192
    one = plan(shape._replace(last=False), 2048, 4, 1)
    _finish[(channels,)](
        x, about, cuts, collected, tallies, *moments, finite, counted, *(held or (about, about)), *out, images,
        channels, size, cap, cut.parts, eps, share, factor, AWAY=away, HELD=held is not None,
        PARTS=triton.next_power_of_2(cut.parts), FIT=fits, CHUNK=chunk, T=one.places, BS=one.row, LAST=shape.last,
        num_warps=max(1, min(16, chunk // 512)) if fits else 16,
    )  # fmt: skip


def median_backward(
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
    return _backward(g, x, weight, found, used, scale, share, mean, None, 0.0)


def _backward(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    found: Statistics,
    used: Tensor,
    scale: Tensor,
    share: float,
    mean: bool,
    kept: Deviations | None,
    factor: float,
) -> tuple[Tensor, Tensor, Tensor]:
    shape = Shape.of(x)
    g = like(g, x)
    dx = torch.empty_like(x)
    d_weight, d_bias = torch.empty(2, shape.channels, device=x.device, dtype=torch.float32).unbind()
    whole = shape.values <= WHOLE and shape.channels >= shape.processors and not shape.last
    cut = plan(shape, TILE, WARPS, 0 if whole else WAVES)
    sums = _summed(g, x, used, found, shape) if not whole else scale.new_empty(2, 1, shape.channels)
    mads, places = (found.centre, found.place) if kept is None else kept
    _combine[cut.grid](
        g, x, dx, used if weight is None else weight, found.centre, mads, found.deviation_sum, places, used, scale,
        found.finite, found.finite_count, *sums, d_weight, d_bias, *cut.sizes, sums.shape[1], share, factor,
        WEIGHT=weight is not None, MEAN=mean, AWAY=kept is not None, WHOLE=whole,
        PARTS=triton.next_power_of_2(sums.shape[1]), **cut.tile(),
    )  # fmt: skip
    return dx, d_weight, d_bias


def _summed(g: Tensor, x: Tensor, used: Tensor, found: Statistics, shape: Shape) -> Tensor:
    """The sums of g and of g · (x − centre), per part and channel; of all parts, where there are many."""
    cut = plan(shape, TILE, WARPS, 8 if shape.last else WAVES)
    sums = torch.empty(2, cut.parts, shape.channels, device=x.device, dtype=torch.float64)
    _reduce[cut.grid](g, x, used, found.finite, found.finite_count, *sums, *cut.sizes, **cut.tile())
    if cut.parts <= GATHERED:
        return sums
    totals = torch.empty(2, 1, shape.channels, device=x.device, dtype=torch.float64)
    rows = triton.next_power_of_2(cut.parts)
    together = max(1, 4096 // rows)
    _total[(triton.cdiv(2 * shape.channels, together),)](
        sums, totals, shape.channels, cut.parts, PARTS=rows, CB=together, num_warps=8
    )
    return totals


# --- the median absolute deviation ------------------------------------------------------------------------------------


class Deviations(NamedTuple):
    """What ``mad_forward`` keeps beside its statistics: each channel's MAD, (1, C), and where median and MAD stand."""

    mads: Tensor
    places: Tensor


def mad_forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    held: tuple[Tensor, Tensor] | None,
    share: float,
    eps: float,
    factor: float,
) -> tuple[Tensor, Statistics, Tensor, Tensor, Deviations]:
    """Normalise with the median, and ``factor`` times the squared MAD; like ``forward``."""
    shape = Shape.of(x)
    y = torch.empty_like(x)
    centre, variance, used, scale = torch.empty(4, shape.channels, device=x.device, dtype=torch.float32).unbind()
    deviation = torch.empty(shape.channels, device=x.device, dtype=torch.float64)
    mads = torch.empty(1, shape.channels, device=x.device, dtype=torch.float32)
    places = torch.empty(2, shape.channels, device=x.device, dtype=torch.int32)
    flags = _flags(x, known=False)
    for away, mix, middle in ((False, None, deviation), (True, held, mads)):
        out = (centre, variance, middle, places[int(away)], used, scale)
        _select(x, shape, centre, away, factor, mix, out, *flags, share, eps)
    cut = plan(shape, TILE, WARPS, WAVES)
    _apply[cut.grid](
        x, y, centre if weight is None else weight, centre if bias is None else bias, centre, mads, used, scale, places,
        *flags, *cut.sizes, WEIGHT=weight is not None, BIAS=bias is not None, FIND=True, AWAY=True, **cut.tile(),
    )  # fmt: skip
    found = Statistics(centre, variance, deviation, places[0], *flags)
    return y, found, used, scale, Deviations(mads, places)


def mad_backward(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    found: Statistics,
    used: Tensor,
    scale: Tensor,
    share: float,
    kept: Deviations,
    factor: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients in closed form: a channel's statistics come from two values."""
    return _backward(g, x, weight, found, used, scale, share, False, kept, factor)


# --- medians over images ----------------------------------------------------------------------------------------------


class Images(NamedTuple):
    """What ``image_forward`` keeps beside its statistics: each image's mean, the images at the middle, their slopes.

    And each image's variance, which smooth gradients alone want.
    """

    means: Tensor
    chosen: Tensor
    slopes: Tensor
    withins: Tensor | None = None


def image_forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    held: tuple[Tensor, Tensor] | None,
    share: float,
    eps: float,
) -> tuple[Tensor, Statistics, Tensor, Tensor, Images]:
    """Normalise with medians over images; like ``forward``."""
    shape = Shape.of(x)
    images, channels, size = shape[:3]
    y = torch.empty_like(x)
    numbers = torch.empty(4, channels, device=x.device, dtype=torch.float32)
    centre, variance, used, scale = numbers.unbind()
    deviation = torch.empty(channels, device=x.device, dtype=torch.float64)
    finite, counted = _flags(x, known=True)
    means, withins = torch.empty(2, images, channels, device=x.device, dtype=torch.float32).unbind()
    chosen = torch.empty(6, channels, device=x.device, dtype=torch.int32)
    slopes = torch.empty(2, channels, device=x.device, dtype=torch.float32)
    together = min(triton.next_power_of_2(channels), TOGETHER)
    row = min(triton.next_power_of_2(size), TILE // together if shape.last else TILE)
    planes = together if shape.last else TILE // row
    programs = images * triton.cdiv(channels, planes) if shape.last else triton.cdiv(images * channels, planes)
    _image_moments[(programs,)](
        x, means, withins, finite, counted, *shape[:3], BP=planes, BS=row, ONE=size <= row,
        **shape.memory(), num_warps=4,
    )  # fmt: skip
    _image_finish[(channels,)](
        means, withins, finite, counted, *(held or (centre, centre)), centre, variance, deviation, used, scale, chosen,
        slopes, *shape[:3], eps, share, HELD=held is not None, BB=triton.next_power_of_2(images),
        num_warps=1 if images <= 256 else 4,
    )  # fmt: skip
    cut = plan(shape, TILE, WARPS, WAVES)
    _apply[cut.grid](
        x, y, centre if weight is None else weight, centre if bias is None else bias, centre, centre, used, scale,
        chosen, finite, counted, *cut.sizes, WEIGHT=weight is not None, BIAS=bias is not None, FIND=False, AWAY=False,
        **cut.tile(),
    )  # fmt: skip
    found = Statistics(centre, variance, deviation, chosen[0], finite, counted)
    return y, found, used, scale, Images(means, chosen, slopes, withins)


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
    shape = Shape.of(x)
    g = like(g, x)
    dx = torch.empty_like(x)
    d_weight, d_bias = torch.empty(2, shape.channels, device=x.device, dtype=torch.float32).unbind()
    sums = _summed(g, x, used, found, shape)
    given = used if weight is None else weight
    cut = plan(shape, TILE, WARPS, WAVES, single=shape.last)
    _image_scale[cut.grid](
        g, x, dx, given, *kept[:3], scale, found.finite, found.finite_count, *sums, d_weight, d_bias, *cut.sizes,
        sums.shape[1], share, WEIGHT=weight is not None, PARTS=triton.next_power_of_2(sums.shape[1]), **cut.tile(),
    )  # fmt: skip
    if not shape.last:
        _image_touch[(shape.channels, 6)](
            g, x, dx, given, *kept[:3], scale, d_weight, d_bias, found.finite_count, *shape[:3], share,
            WEIGHT=weight is not None, BS=min(triton.next_power_of_2(shape.size), 1024), VEC=shape.vector, num_warps=2,
        )  # fmt: skip
    return dx, d_weight, d_bias
