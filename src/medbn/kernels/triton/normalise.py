"""Triton: mix the batch's statistics with the running ones, and normalise an activation in one read and one write.

The same pass can add a residual and apply a ReLU: ``RELU``. What a kernel has no use for is ``None`` in a launch, which
Triton compiles in, so that programs without a ReLU are what they would be if there were none.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .tiles import (
    NO_POSITION,
    by_channel,
    first_position,
    in_bounds,
    load_finite,
    program_channels,
    tile_offsets,
    tile_start,
)


@triton.jit
def mix(
    centre, variance, n, running_centre, running_variance, c, C, batch_weight, eps, RUNNING: tl.constexpr
):  # fmt: skip
    """Return the centre to normalise with and 1/σ, like ``reference.mix``; ``n`` is how many values or images count."""
    used, spread = centre, variance
    if RUNNING:
        old_centre = tl.load(running_centre + c, mask=c < C, other=0.0).to(tl.float32)
        old_variance = tl.load(running_variance + c, mask=c < C, other=1.0).to(tl.float32)
        mixes = (n > 0) & (batch_weight > 0.0)  # 0 times an infinite statistic is NaN
        used = tl.where(mixes, batch_weight * centre + (1.0 - batch_weight) * old_centre, old_centre)
        spread = tl.where(mixes, batch_weight * variance + (1.0 - batch_weight) * old_variance, old_variance)
    return used, 1.0 / tl.sqrt(spread + eps)


@triton.jit
def activate(out, residual, where, inside, ADD: tl.constexpr, RELU: tl.constexpr):
    """Return ``max(out + residual, 0)``, and NaN for NaN; without ``RELU``, ``out``."""
    if RELU:
        if ADD:
            out += tl.load(residual + where, mask=inside, other=0.0).to(tl.float32)
        return tl.where(out <= 0.0, 0.0, out)
    else:
        return out


@triton.jit
def normalise_tiles(
    x, y, residual, m, mad, u, a, add, finite, c, part, parts, B, C, S, ALL: tl.constexpr, FIND: tl.constexpr,
    MAD: tl.constexpr, ADD: tl.constexpr, RELU: tl.constexpr, TILE: tl.constexpr, ROW: tl.constexpr,
    LAST: tl.constexpr, INT64: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Write ``(x − u) · a + add``, activated, and NaN for images that are not finite; ``ALL`` says that all images are.

    Return where the value ``m`` first occurs (with ``FIND``), and a value whose distance from it is ``mad`` (with
    ``MAD``).
    """
    b, s, offsets = tile_offsets(c, parts, C, S, TILE, ROW, LAST, INT64)
    turn = 0
    first = tl.zeros_like(offsets).to(tl.int32) + NO_POSITION
    first_mad = first
    for b0 in range(part, B, parts * (TILE // ROW)):
        for s0 in range(0, S, ROW):
            inside = in_bounds(b + b0, s + s0, c, B, C, S, LAST)
            where = offsets + tile_start(b0, s0, C, S, LAST, INT64)
            v = tl.load(x + where, mask=inside, other=float("nan")).to(tl.float32)
            out = (v - by_channel(u, LAST)) * by_channel(a, LAST) + by_channel(add, LAST)
            out = activate(out, residual, where, inside, ADD, RELU)
            equal = v == by_channel(m, LAST)
            if not ALL:
                counts = load_finite(finite, b0 + b, B, SPLIT, LAST)
                out = tl.where(counts, out, float("nan"))
                equal = equal & counts
            tl.store(y + where, out.to(y.dtype.element_ty), mask=inside)
            if FIND:  # a lane meets its places in order, so that its first turn has its first place
                first = tl.minimum(first, tl.where(equal, turn, NO_POSITION))
            if MAD:
                equal_mad = tl.abs(v - by_channel(m, LAST)) == by_channel(mad, LAST)
                if not ALL:
                    equal_mad = equal_mad & counts
                first_mad = tl.minimum(first_mad, tl.where(equal_mad, turn, NO_POSITION))
            turn += 1
    least = c * 0
    least_mad = c * 0
    if FIND:
        least = first_position(first, b, s, part, parts, S, TILE, ROW, LAST)
    if MAD:
        least_mad = first_position(first_mad, b, s, part, parts, S, TILE, ROW, LAST)
    return least, least_mad


@triton.jit
def normalise(
    x, y, residual, weight, bias, centre, mads, used, scale, selected, finite, finite_count, B, C, S,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, FIND: tl.constexpr, MAD: tl.constexpr, ADD: tl.constexpr,
    RELU: tl.constexpr,
    TILE: tl.constexpr, ROW: tl.constexpr, WIDTH: tl.constexpr, LAST: tl.constexpr, VEC: tl.constexpr,
    INT64: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Normalise an activation with the centre ``used`` and 1/σ ``scale``; with ``RELU`` add ``residual`` and activate.

    With ``FIND``, lower ``selected[0]`` to the first position of each channel's ``centre``; with ``MAD``, also
    ``selected[1]`` to the first position of its MAD.
    """
    S = S // VEC * VEC
    c = program_channels(WIDTH, LAST)
    exists = c < C
    m = tl.load(centre + c, mask=exists, other=0.0)
    u = tl.load(used + c, mask=exists, other=0.0)
    a = tl.load(scale + c, mask=exists, other=0.0)
    mad = m
    if MAD:
        mad = tl.load(mads + c, mask=exists, other=0.0)
    if WEIGHT:
        a *= tl.load(weight + c, mask=exists, other=0.0).to(tl.float32)
    add = u * 0.0
    if BIAS:
        add = tl.load(bias + c, mask=exists, other=0.0).to(tl.float32)
    part = tl.program_id(1)
    parts = tl.num_programs(1)
    if tl.load(finite_count) == B // SPLIT:
        least, least_mad = normalise_tiles(
            x, y, residual, m, mad, u, a, add, finite, c, part, parts, B, C, S, True, FIND, MAD, ADD, RELU,
            TILE, ROW, LAST, INT64, SPLIT,
        )  # fmt: skip
    else:
        least, least_mad = normalise_tiles(
            x, y, residual, m, mad, u, a, add, finite, c, part, parts, B, C, S, False, FIND, MAD, ADD, RELU,
            TILE, ROW, LAST, INT64, SPLIT,
        )  # fmt: skip
    if FIND:
        tl.atomic_min(selected + c, least, mask=exists & (least < NO_POSITION))
    if MAD:
        tl.atomic_min(selected + C + c, least_mad, mask=exists & (least_mad < NO_POSITION))
