"""Triton: medians over images, for ``image_median``.

``image_moments`` reads the activation once and writes each image's own mean and variance in each channel, ``(B, C)``.
``image_statistics`` takes three medians of those: of the means (the centre), of the variances, and of the distances of
the means from the centre. Each is the mean of two images' values (of one image's twice, if their number is odd), so a
channel's statistics come from six images at most: ``selected``, in the order of the medians.

Backward, ``image_gradient`` writes w · r · g for all images. ``selected_image_gradient`` then writes the six images
again, with what the statistics' gradients add to them: a shift, and a slope times (x − the image's mean). Channels last
have other such images in neighbouring channels, so there ``image_gradient`` does both.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..reference import MAD_TO_SIGMA as _MAD_TO_SIGMA
from .gradient import load_sums
from .normalise import mix
from .search import select_rank
from .tiles import by_channel, in_bounds, load_finite, mark_nonfinite, program_channels, tile_offsets, tile_start

MAD_TO_SIGMA = tl.constexpr(_MAD_TO_SIGMA)


@triton.jit
def image_moments(
    x, means, variances, finite, finite_count, B, C, S,
    PLANES: tl.constexpr, ROW: tl.constexpr, ONE_ROW: tl.constexpr, LAST: tl.constexpr, VEC: tl.constexpr,
):  # fmt: skip
    """Write each image's own mean and variance in each channel, and mark the images that are not finite.

    A plane is the values of one image in one channel; a program takes ``PLANES`` of them, ``ROW`` values at a time.
    ``ONE_ROW`` says that a plane fits into one row.
    """
    S = S // VEC * VEC
    pid = tl.program_id(0)
    i = tl.arange(0, PLANES)
    if LAST:  # planes of neighbouring channels of one image
        blocks = tl.cdiv(C, PLANES)
        b = pid // blocks + i * 0
        c = pid % blocks * PLANES + i
        exists = c < C
        q = b.to(tl.int64) * C + c
        where = (pid // blocks).to(tl.int64) * C * S + c
        step = C
    else:  # consecutive planes, of one image or of several
        q = pid.to(tl.int64) * PLANES + i
        b = (q // C).to(tl.int32)
        exists = b < B
        where = q * S
        step = 1
    s = tl.arange(0, ROW)
    places = x + where[:, None] + (s * step)[None, :]
    inside = exists[:, None] & (s < S)[None, :]
    v = tl.load(places, mask=inside, other=0.0).to(tl.float32)
    shift = tl.sum(v, 1) / tl.minimum(S, ROW)  # near the mean, so that little cancels
    d = tl.where(inside, v - shift[:, None], 0.0)
    squares = d * d
    mean = shift
    variance = shift * 0.0
    if not ONE_ROW:
        sums = d
        for s0 in range(ROW, S, ROW):
            inside = exists[:, None] & (s0 + s < S)[None, :]
            v = tl.load(places + s0 * step, mask=inside, other=0.0).to(tl.float32)
            d = tl.where(inside, v - shift[:, None], 0.0)
            sums += d
            squares += d * d
        rest = tl.sum(sums, 1) / S
        mean += rest
        variance -= rest * rest
    variance = tl.maximum(tl.sum(squares, 1) / S + variance, 0.0)
    tl.store(means + q, mean, mask=exists)
    tl.store(variances + q, variance, mask=exists)
    suspicious = (exists & (mean - mean != 0.0)).to(tl.int32)
    if tl.max(suspicious, 0) != 0:  # a value that is not finite, or an overflow: read again to know which
        nonfinite = tl.zeros((PLANES, ROW), tl.int32)
        for s0 in range(0, S, ROW):
            s = s0 + tl.arange(0, ROW)
            inside = exists[:, None] & (s < S)[None, :]
            v = tl.load(x + where[:, None] + (s * step)[None, :], mask=inside, other=0.0).to(tl.float32)
            nonfinite |= (v - v != 0.0).to(tl.int32)
        flags = tl.max(nonfinite, 1)
        if tl.max(flags, 0) != 0:
            mark_nonfinite(flags, finite, finite_count, b, B)


@triton.jit
def image_of_rank(values, mask, b, value, k):
    """Return which image has the value of rank k; of images with equal values, the one a stable sort puts there."""
    less = tl.sum((mask & (values < value)).to(tl.int32), 0)
    equal = mask & (values == value)
    nth = tl.cumsum(equal.to(tl.int32), 0)
    return tl.sum(tl.where(equal & (nth == k - less + 1), b, 0), 0)


@triton.jit
def middle_of_images(values, mask, b, n, low, high):
    """Return the mean of the values of ranks ``low`` and ``high`` (low or low + 1), and which images have them."""
    first = select_rank(values, mask, n, low, low)
    upto = tl.sum((mask & (values <= first)).to(tl.int32), 0)
    following = tl.min(tl.where(mask & (values > first), values, float("inf")), 0)
    second = tl.where(upto > high, first, following)
    middle = 0.5 * first + 0.5 * second
    return middle, image_of_rank(values, mask, b, first, low), image_of_rank(values, mask, b, second, high)


@triton.jit
def image_statistics(
    means, variances, finite, finite_count, running_centre, running_variance, centre_out, variance_out,
    deviation_sum_out, used_out, scale_out, selected, slopes, B, C, S, eps, batch_weight,
    RUNNING: tl.constexpr, BATCH: tl.constexpr,
):  # fmt: skip
    """Write the medians over the finite images, the six images that they come from, and what ``mix`` makes of them."""
    c = tl.program_id(0)
    b = tl.arange(0, BATCH)
    counts = tl.load(finite + b, mask=b < B, other=0) != 0
    n = tl.load(finite_count)
    low = tl.maximum(n - 1, 0) // 2
    high = n // 2
    mean = tl.load(means + b * C + c, mask=counts, other=0.0)
    inner = tl.load(variances + b * C + c, mask=counts, other=0.0)
    inner = tl.where(tl.abs(mean) < float("inf"), inner, float("inf"))  # an image of huge values stays one image
    m, mean_low, mean_high = middle_of_images(mean, counts, b, n, low, high)
    middle, inner_low, inner_high = middle_of_images(inner, counts, b, n, low, high)
    deviation = mean - m
    mad, mad_low, mad_high = middle_of_images(tl.abs(deviation), counts, b, n, low, high)
    variance = middle + (MAD_TO_SIGMA * mad) * (MAD_TO_SIGMA * mad)
    m = tl.where(n > 0, m, float("nan"))
    variance = tl.where(n > 0, variance, float("nan"))
    used, r = mix(m, variance, n, running_centre, running_variance, c, C, batch_weight, eps, RUNNING)
    tl.store(centre_out + c, m)
    tl.store(variance_out + c, variance)
    tl.store(deviation_sum_out + c, tl.sum(tl.where(counts, deviation, 0.0).to(tl.float64)) * S)
    tl.store(used_out + c, used)
    tl.store(scale_out + c, r)
    tl.store(selected + c, mean_low)
    tl.store(selected + C + c, mean_high)
    tl.store(selected + 2 * C + c, inner_low)
    tl.store(selected + 3 * C + c, inner_high)
    tl.store(selected + 4 * C + c, mad_low)
    tl.store(selected + 5 * C + c, mad_high)
    # The derivatives of the variance with respect to the means of the two images that the MAD comes from.
    slope = 2.0 * MAD_TO_SIGMA * MAD_TO_SIGMA * mad * 0.5
    first = tl.sum(tl.where(b == mad_low, deviation, 0.0))
    second = tl.sum(tl.where(b == mad_high, deviation, 0.0))
    tl.store(slopes + c, slope * ((first > 0).to(tl.float32) - (first < 0).to(tl.float32)))
    tl.store(slopes + C + c, slope * ((second > 0).to(tl.float32) - (second < 0).to(tl.float32)))


@triton.jit
def image_coefficients(
    b, weight, means, selected, slopes, scale, sum_g, gain, c, C, S, batch_weight, WEIGHT: tl.constexpr
):  # fmt: skip
    """Return what the statistics' gradients add to image ``b``: ``shift + slope · (x − mean)``, as these three."""
    exists = c < C
    r = tl.load(scale + c, mask=exists, other=0.0)
    w = tl.load(weight + c, mask=exists, other=0.0).to(tl.float32) if WEIGHT else 1.0
    d_centre = -batch_weight * w * r * sum_g
    d_variance = -0.5 * batch_weight * w * r * r * gain
    through_low = d_variance * tl.load(slopes + c, mask=exists, other=0.0)
    through_high = d_variance * tl.load(slopes + C + c, mask=exists, other=0.0)
    d_centre -= through_low + through_high
    first = (b == tl.load(selected + c, mask=exists, other=-1)).to(tl.float32)
    second = (b == tl.load(selected + C + c, mask=exists, other=-1)).to(tl.float32)
    inner = (b == tl.load(selected + 2 * C + c, mask=exists, other=-1)).to(tl.float32)
    inner += (b == tl.load(selected + 3 * C + c, mask=exists, other=-1)).to(tl.float32)
    shift = 0.5 * d_centre * (first + second)
    shift += tl.where(b == tl.load(selected + 4 * C + c, mask=exists, other=-1), through_low, 0.0)
    shift += tl.where(b == tl.load(selected + 5 * C + c, mask=exists, other=-1), through_high, 0.0)
    slope = d_variance * inner / S
    mean = tl.load(means + b * C + c, mask=exists & (slope != 0.0), other=0.0)
    return shift / S, slope, mean


@triton.jit
def image_gradient(
    g, x, dx, weight, means, selected, slopes, scale, finite, finite_count, sums_g, sums_gx, d_weight, d_bias,
    B, C, S, sums, batch_weight,
    WEIGHT: tl.constexpr, PARTS: tl.constexpr, TILE: tl.constexpr, ROW: tl.constexpr, WIDTH: tl.constexpr,
    LAST: tl.constexpr, VEC: tl.constexpr, INT64: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Write ``w · r · g``, without reading x. With ``LAST`` also add what the statistics' gradients add to an image.

    With ``LAST``, a tile is of one image.
    """
    S = S // VEC * VEC
    c = program_channels(WIDTH, LAST)
    exists = c < C
    part = tl.program_id(1)
    parts = tl.num_programs(1)
    a = tl.load(scale + c, mask=exists, other=0.0)
    if LAST or part == 0:
        sum_g, sum_gx = load_sums(sums_g, sums_gx, c, C, sums, PARTS, LAST)
        gain = a * sum_gx
        if part == 0:
            tl.store(d_bias + c, sum_g, mask=exists)
            tl.store(d_weight + c, gain, mask=exists)
    if WEIGHT:
        a *= tl.load(weight + c, mask=exists, other=0.0).to(tl.float32)
    any_image = tl.load(finite_count) > 0
    a = tl.where(any_image, a, 0.0)  # without a finite image it may be NaN
    b, s, offsets = tile_offsets(c, parts, C, S, TILE, ROW, LAST, INT64)
    for b0 in range(part, B, parts * (TILE // ROW)):
        counts = load_finite(finite, b0 + b, B, SPLIT, LAST)
        if LAST:
            shift, slope, mean = image_coefficients(
                b0 // SPLIT, weight, means, selected, slopes, scale, sum_g, gain, c, C, S * SPLIT, batch_weight, WEIGHT
            )
            shift = tl.where(any_image, shift, 0.0)
            slope = tl.where(any_image, slope, 0.0)
        for s0 in range(0, S, ROW):
            inside = in_bounds(b + b0, s + s0, c, B, C, S, LAST)
            where = offsets + tile_start(b0, s0, C, S, LAST, INT64)
            grad = tl.load(g + where, mask=inside & counts, other=0.0).to(tl.float32)
            out = by_channel(a, LAST) * grad
            if LAST:
                sloped = inside & counts & (slope != 0.0)[None, :]
                v = tl.load(x + where, mask=sloped, other=0.0).to(tl.float32)
                out += tl.where(sloped, slope[None, :] * (v - mean[None, :]), 0.0)
                out += tl.where(counts, shift[None, :], 0.0)
            tl.store(dx + where, out.to(dx.dtype.element_ty), mask=inside)


@triton.jit
def selected_image_gradient(
    g, x, dx, weight, means, selected, slopes, scale, d_weight, d_bias, finite_count, B, C, S, batch_weight,
    WEIGHT: tl.constexpr, ROW: tl.constexpr, VEC: tl.constexpr,
):  # fmt: skip
    """Write the gradient of one of the six selected images of a channel; one selected twice is written twice alike."""
    S = S // VEC * VEC
    c = tl.program_id(0)
    if tl.load(finite_count) == 0:
        return
    b = tl.load(selected + tl.program_id(1) * C + c)
    shift, slope, mean = image_coefficients(
        b, weight, means, selected, slopes, scale, tl.load(d_bias + c), tl.load(d_weight + c), c, C, S, batch_weight,
        WEIGHT,
    )  # fmt: skip
    a = tl.load(scale + c)
    if WEIGHT:
        a *= tl.load(weight + c).to(tl.float32)
    for s0 in range(0, S, ROW):
        s = s0 + tl.arange(0, ROW)
        place = b.to(tl.int64) * C * S + c * S + s
        v = tl.load(x + place, mask=s < S, other=0.0).to(tl.float32)
        grad = tl.load(g + place, mask=s < S, other=0.0).to(tl.float32)
        out = a * grad + shift + tl.where(slope == 0.0, 0.0, slope * (v - mean))
        tl.store(dx + place, out.to(dx.dtype.element_ty), mask=s < S)
