"""Triton: the backward pass where statistics are of whole channels (median, MAD, or the mean's gradient).

With y = w · (x − c) · r + b and r = 1/√(v + eps), the gradient of the input is

    dx = w · r · g  +  slope · (x − centre) + shift  +  a summand at the median, and at the value that the MAD is of.

``reduce`` reads g and x and sums g and g · (x − c), which are the gradients of bias and weight, up to r. ``combine``
makes the coefficients of these sums, reads g and x (for the MAD, g alone) and writes dx. Where one program can hold a
whole channel's loop, ``combine`` sums for itself: one launch, and the second read of g and x comes from cache.

Behind a ReLU with the output y, g is 0 where y ≤ 0. Whichever kernel reads g first masks it so (``RELU``); ``reduce``
writes the masked g for the kernels that follow, and it is also the gradient of a residual.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .tiles import (
    NO_POSITION,
    by_channel,
    by_place,
    find_lane,
    in_bounds,
    load_finite,
    program_channels,
    tile_offsets,
    tile_start,
)


@triton.jit
def load_gradient(g, y, masked, where, inside, counts, RELU: tl.constexpr, KEEP: tl.constexpr):
    """Return g where it ``counts``, behind a ReLU with the output y; ``KEEP`` writes it, for all images, to ``masked``.

    As in torch, the gradient of a NaN passes.
    """
    if RELU:
        grad = tl.load(g + where, mask=inside, other=0.0).to(tl.float32)
        grad = tl.where(tl.load(y + where, mask=inside, other=0.0).to(tl.float32) <= 0.0, 0.0, grad)
        if KEEP:
            tl.store(masked + where, grad.to(masked.dtype.element_ty), mask=inside)
        return tl.where(counts, grad, 0.0)
    else:
        return tl.load(g + where, mask=counts, other=0.0).to(tl.float32)


@triton.jit
def reduce_tiles(
    g, x, y, masked, u, finite, c, part, parts, B, C, S, ALL: tl.constexpr, RELU: tl.constexpr, KEEP: tl.constexpr,
    TILE: tl.constexpr, ROW: tl.constexpr, LAST: tl.constexpr, INT64: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Return the sums of g and of g · (x − u) over the program's images; ``ALL`` says that all images are finite."""
    b, s, offsets = tile_offsets(c, parts, C, S, TILE, ROW, LAST, INT64)
    sums = tl.zeros_like(offsets).to(tl.float32)
    products = tl.zeros_like(offsets).to(tl.float32)
    for b0 in range(part, B, parts * (TILE // ROW)):
        for s0 in range(0, S, ROW):
            inside = in_bounds(b + b0, s + s0, c, B, C, S, LAST)
            counts = inside
            if not ALL:
                counts = inside & load_finite(finite, b0 + b, B, SPLIT, LAST)
            where = offsets + tile_start(b0, s0, C, S, LAST, INT64)
            v = tl.load(x + where, mask=counts, other=0.0).to(tl.float32)
            grad = load_gradient(g, y, masked, where, inside, counts, RELU, KEEP)
            sums += grad
            products += tl.where(grad == 0.0, 0.0, grad * (v - by_channel(u, LAST)))
    return tl.sum(sums.to(tl.float64), 0), tl.sum(products.to(tl.float64), 0)


@triton.jit
def reduce(
    g, x, y, masked, used, finite, finite_count, sums_g, sums_gx, B, C, S,
    RELU: tl.constexpr, TILE: tl.constexpr, ROW: tl.constexpr, WIDTH: tl.constexpr, LAST: tl.constexpr,
    VEC: tl.constexpr, INT64: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Write the sums of g and of g · (x − used) that each program makes, as ``(parts, C)`` each.

    With ``RELU``, g is first masked by the output y, and ``masked`` gets it.
    """
    S = S // VEC * VEC
    c = program_channels(WIDTH, LAST)
    exists = c < C
    part = tl.program_id(1)
    parts = tl.num_programs(1)
    u = tl.load(used + c, mask=exists, other=0.0)
    if tl.load(finite_count) == B // SPLIT:
        total, product = reduce_tiles(
            g, x, y, masked, u, finite, c, part, parts, B, C, S, True, RELU, RELU, TILE, ROW, LAST, INT64, SPLIT
        )
    else:
        total, product = reduce_tiles(
            g, x, y, masked, u, finite, c, part, parts, B, C, S, False, RELU, RELU, TILE, ROW, LAST, INT64, SPLIT
        )
    tl.store(sums_g + part * C + c, total, mask=exists)
    tl.store(sums_gx + part * C + c, product, mask=exists)


@triton.jit
def add_parts(sums, totals, C, parts, PARTS: tl.constexpr, WIDTH: tl.constexpr):
    """Add both sums over many parts, so that not every program of the next kernel has to."""
    c = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    i = tl.arange(0, PARTS)
    at = (c // C * parts * C + c % C)[None, :] + (i * C)[:, None]
    inside = (i < parts)[:, None] & (c < 2 * C)[None, :]
    tl.store(totals + c, tl.sum(tl.load(sums + at, mask=inside, other=0.0), 0), mask=c < 2 * C)


@triton.jit
def load_sums(sums_g, sums_gx, c, C, parts, PARTS: tl.constexpr, LAST: tl.constexpr):
    """Return the sums of g and of g · (x − used) over all parts."""
    i = tl.arange(0, PARTS)
    at = by_place(i * C, LAST) + by_channel(c, LAST)
    inside = by_place(i < parts, LAST)
    if LAST:
        inside = inside & (c < C)[None, :]
    total = tl.sum(tl.load(sums_g + at, mask=inside, other=0.0), 0)
    return total.to(tl.float32), tl.sum(tl.load(sums_gx + at, mask=inside, other=0.0), 0).to(tl.float32)


@triton.jit
def load_mad_slope(x, centre, mads, position, factor, c, C, S, LAST: tl.constexpr):
    """Return the derivative of ``factor`` · MAD² with respect to the value at ``position``, which the MAD is of."""
    exists = (c < C) & (position < NO_POSITION)
    image = (position // S).to(tl.int64)
    where = position.to(tl.int64) * C + c if LAST else image * C * S + c * S + position % S
    v = tl.load(x + where, mask=exists, other=0.0).to(tl.float32)
    deviation = v - tl.load(centre + c, mask=exists, other=0.0)
    mad = tl.load(mads + c, mask=exists, other=0.0)
    return 2.0 * factor * mad * ((deviation > 0).to(tl.float32) - (deviation < 0).to(tl.float32))


@triton.jit
def channel_coefficients(
    sum_g, sum_gx, mad_slope, weight, deviation_sum, scale, finite_count, d_weight, d_bias, c, C, S, batch_weight,
    WEIGHT: tl.constexpr, MEAN: tl.constexpr, MAD: tl.constexpr, SPLIT: tl.constexpr, WRITE,
):  # fmt: skip
    """Return the coefficients of ``dx = a · g + slope · (x − centre) + shift``, plus what the median and the MAD get.

    With ``MEAN`` the statistics' gradient is that of mean and variance. With ``MAD`` the variance depends on one value,
    with the derivative ``mad_slope``. ``WRITE`` stores the gradients of weight and bias.
    """
    exists = c < C
    r = tl.load(scale + c, mask=exists, other=0.0)
    w = tl.load(weight + c, mask=exists, other=0.0).to(tl.float32) if WEIGHT else 1.0
    n = tl.maximum(tl.load(finite_count).to(tl.int64) * S * SPLIT, 1).to(tl.float32)
    deviations = tl.load(deviation_sum + c, mask=exists, other=0.0).to(tl.float32)
    gain = r * sum_gx
    if WRITE:
        tl.store(d_bias + c, sum_g, mask=exists)
        tl.store(d_weight + c, gain, mask=exists)
    d_centre = -batch_weight * w * r * sum_g
    d_variance = -0.5 * batch_weight * w * r * r * gain
    slope = 2.0 * d_variance / n
    through_centre = tl.where(slope == 0.0, 0.0, slope * deviations)  # the variance's own dependence on the centre
    at_mad = slope * 0.0
    if MEAN:
        shift = (d_centre - through_centre) / n
        at_median = shift * 0.0
    else:
        if MAD:
            slope = slope * 0.0
            at_mad = tl.where(d_variance == 0.0, 0.0, d_variance * mad_slope)
            through_centre = at_mad
        at_median = d_centre - through_centre
        shift = at_median * 0.0
    return w * r, slope, shift, at_median, at_mad


@triton.jit
def combine_tiles(
    g, x, y, masked, dx, a, slope, shift, at_median, at_mad, m, median_position, mad_position, finite, c, part, parts,
    B, C, S, ALL: tl.constexpr, MAD: tl.constexpr, RELU: tl.constexpr, KEEP: tl.constexpr, TILE: tl.constexpr,
    ROW: tl.constexpr, LAST: tl.constexpr, INT64: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Write the gradient. With ``MAD`` there is neither slope nor shift, and x is not read."""
    b, s, offsets = tile_offsets(c, parts, C, S, TILE, ROW, LAST, INT64)
    own, median_image, median_place = find_lane(median_position, b, s, part, parts, S, TILE, ROW, LAST)
    if MAD:
        own_mad, mad_image, mad_place = find_lane(mad_position, b, s, part, parts, S, TILE, ROW, LAST)
    for b0 in range(part, B, parts * (TILE // ROW)):
        for s0 in range(0, S, ROW):
            inside = in_bounds(b + b0, s + s0, c, B, C, S, LAST)
            counts = inside
            if not ALL:
                counts = inside & load_finite(finite, b0 + b, B, SPLIT, LAST)
            where = offsets + tile_start(b0, s0, C, S, LAST, INT64)
            grad = load_gradient(g, y, masked, where, inside, counts, RELU, KEEP)
            extra = tl.where((median_image == b0) & (median_place == s0), at_median, 0.0)
            if MAD:
                extra_mad = tl.where((mad_image == b0) & (mad_place == s0), at_mad, 0.0)
                out = by_channel(a, LAST) * grad + tl.where(own, by_channel(extra, LAST), 0.0)
                out += tl.where(own_mad, by_channel(extra_mad, LAST), 0.0)
            else:
                v = tl.load(x + where, mask=counts, other=0.0).to(tl.float32)
                per_value = by_channel(slope, LAST)
                sloped = tl.where(per_value == 0.0, 0.0, per_value * (v - by_channel(m, LAST)))
                out = by_channel(a, LAST) * grad + sloped
                out += by_channel(shift, LAST) + tl.where(own, by_channel(extra, LAST), 0.0)
            if not ALL:
                out = tl.where(counts, out, 0.0)
            tl.store(dx + where, out.to(dx.dtype.element_ty), mask=inside)


@triton.jit
def combine(
    g, x, y, masked, dx, weight, centre, mads, deviation_sum, selected, used, scale, finite, finite_count, sums_g,
    sums_gx, d_weight, d_bias, B, C, S, sums, batch_weight, factor,
    WEIGHT: tl.constexpr, MEAN: tl.constexpr, MAD: tl.constexpr, WHOLE: tl.constexpr, PARTS: tl.constexpr,
    RELU: tl.constexpr, KEEP: tl.constexpr,
    TILE: tl.constexpr, ROW: tl.constexpr, WIDTH: tl.constexpr, LAST: tl.constexpr, VEC: tl.constexpr,
    INT64: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Write the gradients of input, weight and bias, from the sums that ``reduce`` made.

    With ``WHOLE`` a program takes whole channels, and makes the sums itself; with ``RELU``, of g masked by the output
    y, which ``KEEP`` writes to ``masked``.
    """
    S = S // VEC * VEC
    c = program_channels(WIDTH, LAST)
    exists = c < C
    part = tl.program_id(1)
    parts = tl.num_programs(1)
    all_finite = tl.load(finite_count) == B // SPLIT
    if WHOLE:
        u = tl.load(used + c, mask=exists, other=0.0)
        if all_finite:
            total, product = reduce_tiles(
                g, x, y, masked, u, finite, c, part, parts, B, C, S, True, RELU, False, TILE, ROW, LAST, INT64, SPLIT
            )
        else:
            total, product = reduce_tiles(
                g, x, y, masked, u, finite, c, part, parts, B, C, S, False, RELU, False, TILE, ROW, LAST, INT64, SPLIT
            )
        sum_g = total.to(tl.float32)
        sum_gx = product.to(tl.float32)
    else:
        sum_g, sum_gx = load_sums(sums_g, sums_gx, c, C, sums, PARTS, LAST)
    median_position = tl.load(selected + c, mask=exists, other=0)
    mad_position = median_position
    mad_slope = 0.0
    if MAD:
        mad_position = tl.load(selected + C + c, mask=exists, other=0)
        mad_slope = load_mad_slope(x, centre, mads, mad_position, factor, c, C, S, LAST)
    a, slope, shift, at_median, at_mad = channel_coefficients(
        sum_g, sum_gx, mad_slope, weight, deviation_sum, scale, finite_count, d_weight, d_bias, c, C, S, batch_weight,
        WEIGHT, MEAN, MAD, SPLIT, part == 0,
    )  # fmt: skip
    m = tl.load(centre + c, mask=exists, other=0.0)
    if all_finite:
        combine_tiles(
            g, x, y, masked, dx, a, slope, shift, at_median, at_mad, m, median_position, mad_position, finite, c, part,
            parts, B, C, S, True, MAD, RELU, KEEP, TILE, ROW, LAST, INT64, SPLIT,
        )  # fmt: skip
    else:
        combine_tiles(
            g, x, y, masked, dx, a, slope, shift, at_median, at_mad, m, median_position, mad_position, finite, c, part,
            parts, B, C, S, False, MAD, RELU, KEEP, TILE, ROW, LAST, INT64, SPLIT,
        )  # fmt: skip
