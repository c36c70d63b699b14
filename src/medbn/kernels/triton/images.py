"""Triton: medians over images. Each image's own moments in one pass, then everything is small."""

from __future__ import annotations

import triton
import triton.language as tl

from .passes import _channels, _gathered, _good, _inside, _lanes, _start, _wide
from .search import _mark, _mixed, _search

MAD_TO_SIGMA = tl.constexpr(1.4826)


@triton.jit
def _image_moments(
    x, means, withins, finite, counted, B, C, S,
    BP: tl.constexpr, BS: tl.constexpr, ONE: tl.constexpr, LAST: tl.constexpr, VEC: tl.constexpr,
):  # fmt: skip
    """Each image's own mean and variance in each channel; in one reading."""
    S = S // VEC * VEC
    pid = tl.program_id(0)
    i = tl.arange(0, BP)
    if LAST:  # planes of one image, whose channels are neighbours
        blocks = tl.cdiv(C, BP)
        b = pid // blocks + i * 0
        c = pid % blocks * BP + i
        there = c < C
        q = b.to(tl.int64) * C + c
        where = (pid // blocks).to(tl.int64) * C * S + c
        next_one = C
    else:  # planes that follow each other, of one image or of two
        q = pid.to(tl.int64) * BP + i
        b = (q // C).to(tl.int32)
        there = b < B
        where = q * S
        next_one = 1
    s = tl.arange(0, BS)
    places = x + where[:, None] + (s * next_one)[None, :]
    inside = there[:, None] & (s < S)[None, :]
    v = tl.load(places, mask=inside, other=0.0).to(tl.float32)
    shift = tl.sum(v, 1) / tl.minimum(S, BS)  # near the mean, so that little cancels
    d = tl.where(inside, v - shift[:, None], 0.0)
    squares = d * d
    mean = shift
    within = shift * 0.0
    if not ONE:
        sums = d
        for s0 in range(BS, S, BS):
            inside = there[:, None] & (s0 + s < S)[None, :]
            v = tl.load(places + s0 * next_one, mask=inside, other=0.0).to(tl.float32)
            d = tl.where(inside, v - shift[:, None], 0.0)
            sums += d
            squares += d * d
        rest = tl.sum(sums, 1) / S
        mean += rest
        within -= rest * rest
    within = tl.maximum(tl.sum(squares, 1) / S + within, 0.0)
    tl.store(means + q, mean, mask=there)
    tl.store(withins + q, within, mask=there)
    odd = (there & (mean - mean != 0.0)).to(tl.int32)
    if tl.max(odd, 0) != 0:  # a value that is not finite, or an overflow: look again
        strange = tl.zeros((BP, BS), tl.int32)
        for s0 in range(0, S, BS):
            s = s0 + tl.arange(0, BS)
            inside = there[:, None] & (s < S)[None, :]
            v = tl.load(x + where[:, None] + (s * next_one)[None, :], mask=inside, other=0.0).to(tl.float32)
            strange |= (v - v != 0.0).to(tl.int32)
        bad = tl.max(strange, 1)
        if tl.max(bad, 0) != 0:
            _mark(bad, finite, counted, b, B)


@triton.jit
def _place(values, mask, b, value, k):
    """Which image has the value of rank k: of equal ones, the one that a stable sort has there."""
    less = tl.sum((mask & (values < value)).to(tl.int32), 0)
    equal = mask & (values == value)
    nth = tl.cumsum(equal.to(tl.int32), 0)
    return tl.sum(tl.where(equal & (nth == k - less + 1), b, 0), 0)


@triton.jit
def _middle(values, mask, b, n, low, high):
    """The mean of the values of ranks ``low`` and ``high`` (the same, or the next), and which images have them."""
    first = _search(values, mask, n, low, low)
    upto = tl.sum((mask & (values <= first)).to(tl.int32), 0)
    next_one = tl.min(tl.where(mask & (values > first), values, float("inf")), 0)
    second = tl.where(upto > high, first, next_one)
    return 0.5 * first + 0.5 * second, _place(values, mask, b, first, low), _place(values, mask, b, second, high)


@triton.jit
def _image_finish(
    means, withins, finite, counted, held_centre, held_variance, centre_out, variance_out, deviation_out, used_out,
    scale_out, chosen, slopes, B, C, S, eps, share, HELD: tl.constexpr, BB: tl.constexpr,
):  # fmt: skip
    c = tl.program_id(0)
    b = tl.arange(0, BB)
    good = tl.load(finite + b, mask=b < B, other=0) != 0
    n = tl.load(counted)
    low = tl.maximum(n - 1, 0) // 2
    high = n // 2
    mean = tl.load(means + b * C + c, mask=good, other=0.0)
    within = tl.load(withins + b * C + c, mask=good, other=0.0)
    within = tl.where(tl.abs(mean) < float("inf"), within, float("inf"))  # an image of huge values stays one image
    m, i1, i2 = _middle(mean, good, b, n, low, high)
    inner, j1, j2 = _middle(within, good, b, n, low, high)
    away = mean - m
    mad, k1, k2 = _middle(tl.abs(away), good, b, n, low, high)
    variance = inner + (MAD_TO_SIGMA * mad) * (MAD_TO_SIGMA * mad)
    m = tl.where(n > 0, m, float("nan"))
    variance = tl.where(n > 0, variance, float("nan"))
    used, r = _mixed(m, variance, n, held_centre, held_variance, c, C, share, eps, HELD)
    tl.store(centre_out + c, m)
    tl.store(variance_out + c, variance)
    tl.store(deviation_out + c, tl.sum(tl.where(good, away, 0.0).to(tl.float64)) * S)
    tl.store(used_out + c, used)
    tl.store(scale_out + c, r)
    tl.store(chosen + c, i1)
    tl.store(chosen + C + c, i2)
    tl.store(chosen + 2 * C + c, j1)
    tl.store(chosen + 3 * C + c, j2)
    tl.store(chosen + 4 * C + c, k1)
    tl.store(chosen + 5 * C + c, k2)
    # What each of the two images at the middle of the deviations passes on of the variance's gradient.
    rise = 2.0 * MAD_TO_SIGMA * MAD_TO_SIGMA * mad * 0.5
    first = tl.sum(tl.where(b == k1, away, 0.0))
    second = tl.sum(tl.where(b == k2, away, 0.0))
    tl.store(slopes + c, rise * ((first > 0).to(tl.float32) - (first < 0).to(tl.float32)))
    tl.store(slopes + C + c, rise * ((second > 0).to(tl.float32) - (second < 0).to(tl.float32)))


@triton.jit
def _image_shares(
    b, weight, means, chosen, slopes, scale, sum_g, gain, c, C, S, share, WEIGHT: tl.constexpr
):  # fmt: skip
    """What the statistics' gradients add to image ``b``: a shift, a slope, and the mean that goes with it."""
    there = c < C
    r = tl.load(scale + c, mask=there, other=0.0)
    w = tl.load(weight + c, mask=there, other=0.0).to(tl.float32) if WEIGHT else 1.0
    d_centre = -share * w * r * sum_g
    d_variance = -0.5 * share * w * r * r * gain
    up1 = d_variance * tl.load(slopes + c, mask=there, other=0.0)
    up2 = d_variance * tl.load(slopes + C + c, mask=there, other=0.0)
    d_centre -= up1 + up2
    first = (b == tl.load(chosen + c, mask=there, other=-1)).to(tl.float32)
    second = (b == tl.load(chosen + C + c, mask=there, other=-1)).to(tl.float32)
    inner = (b == tl.load(chosen + 2 * C + c, mask=there, other=-1)).to(tl.float32)
    inner += (b == tl.load(chosen + 3 * C + c, mask=there, other=-1)).to(tl.float32)
    shift = 0.5 * d_centre * (first + second)
    shift += tl.where(b == tl.load(chosen + 4 * C + c, mask=there, other=-1), up1, 0.0)
    shift += tl.where(b == tl.load(chosen + 5 * C + c, mask=there, other=-1), up2, 0.0)
    slope = d_variance * inner / S
    mean = tl.load(means + b * C + c, mask=there & (slope != 0.0), other=0.0)
    return shift / S, slope, mean


@triton.jit
def _image_scale(
    g, x, dx, weight, means, chosen, slopes, scale, finite, counted, first, second, d_weight, d_bias,
    B, C, S, sums, share,
    WEIGHT: tl.constexpr, PARTS: tl.constexpr, T: tl.constexpr, BS: tl.constexpr, CB: tl.constexpr,
    LAST: tl.constexpr, VEC: tl.constexpr, FAR: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """The gradient of all images but those that the statistics come from: ``w · r · g``, without a look at x.

    With ``LAST``, where every channel has other such images, of those too; a tile is of one image there.
    """
    S = S // VEC * VEC
    c = _channels(CB, LAST)
    there = c < C
    part = tl.program_id(1)
    parts = tl.num_programs(1)
    a = tl.load(scale + c, mask=there, other=0.0)
    if LAST or part == 0:
        sum_g, sum_gx = _gathered(first, second, c, C, sums, PARTS, LAST)
        gain = a * sum_gx
        if part == 0:
            tl.store(d_bias + c, sum_g, mask=there)
            tl.store(d_weight + c, gain, mask=there)
    if WEIGHT:
        a *= tl.load(weight + c, mask=there, other=0.0).to(tl.float32)
    some = tl.load(counted) > 0
    a = tl.where(some, a, 0.0)  # without a finite image it may not be a number
    b, s, lanes = _lanes(c, parts, C, S, T, BS, LAST, FAR)
    for b0 in range(part, B, parts * (T // BS)):
        good = _good(finite, b0 + b, B, SPLIT, LAST)
        if LAST:
            shift, slope, mean = _image_shares(
                b0 // SPLIT, weight, means, chosen, slopes, scale, sum_g, gain, c, C, S * SPLIT, share, WEIGHT
            )
            shift = tl.where(some, shift, 0.0)
            slope = tl.where(some, slope, 0.0)
        for s0 in range(0, S, BS):
            inside = _inside(b + b0, s + s0, c, B, C, S, LAST)
            where = lanes + _start(b0, s0, C, S, LAST, FAR)
            along = tl.load(g + where, mask=inside & good, other=0.0).to(tl.float32)
            out = _wide(a, LAST) * along
            if LAST:
                sloped = inside & good & (slope != 0.0)[None, :]
                v = tl.load(x + where, mask=sloped, other=0.0).to(tl.float32)
                out += tl.where(sloped, slope[None, :] * (v - mean[None, :]), 0.0)
                out += tl.where(good, shift[None, :], 0.0)
            tl.store(dx + where, out.to(dx.dtype.element_ty), mask=inside)


@triton.jit
def _image_touch(
    g, x, dx, weight, means, chosen, slopes, scale, d_weight, d_bias, counted, B, C, S, share,
    WEIGHT: tl.constexpr, BS: tl.constexpr, VEC: tl.constexpr,
):  # fmt: skip
    """One of the six images that a channel's statistics come from; one that is chosen twice is written twice alike."""
    S = S // VEC * VEC
    c = tl.program_id(0)
    if tl.load(counted) == 0:
        return
    b = tl.load(chosen + tl.program_id(1) * C + c)
    shift, slope, mean = _image_shares(
        b, weight, means, chosen, slopes, scale, tl.load(d_bias + c), tl.load(d_weight + c), c, C, S, share, WEIGHT
    )
    a = tl.load(scale + c)
    if WEIGHT:
        a *= tl.load(weight + c).to(tl.float32)
    for s0 in range(0, S, BS):
        s = s0 + tl.arange(0, BS)
        place = b.to(tl.int64) * C * S + c * S + s
        v = tl.load(x + place, mask=s < S, other=0.0).to(tl.float32)
        along = tl.load(g + place, mask=s < S, other=0.0).to(tl.float32)
        out = a * along + shift + tl.where(slope == 0.0, 0.0, slope * (v - mean))
        tl.store(dx + place, out.to(dx.dtype.element_ty), mask=s < S)
