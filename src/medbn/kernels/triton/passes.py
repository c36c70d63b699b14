"""Triton: the passes over an activation that every estimator shares, and how an activation is cut into tiles.

An activation is dense ``(B, C, S)``, contiguous or, with ``LAST``, with its channels innermost. A tile is ``T`` places
of one channel or, with ``LAST``, of ``CB`` neighbouring channels; then what belongs to a channel is a vector, otherwise
a number. Place t of a tile is place ``s0 + t % BS`` of image ``b0 + step · (t // BS)``: programs that share a channel
take every ``step``-th image, so that neighbours in a batch, an attacker's images say, go to different programs.
``VEC`` divides S, which Triton cannot see: that many values are loaded at once. ``FAR`` says that offsets need 64 bits.
With ``LAST``, an image may be ``SPLIT`` into as many: what kernels call an image is then a part of one.

``finite`` marks the images that are, and ``counted`` their number. Sums are made of parts in a fixed order, and of what
several programs write only the set matters, or the least: every result is the same each time.
"""

from __future__ import annotations

import triton
import triton.language as tl

NOWHERE = tl.constexpr(2147483647)


@triton.jit
def _channels(CB: tl.constexpr, LAST: tl.constexpr):
    """A program's channels: a vector of neighbours, or one number."""
    if LAST:
        return tl.program_id(0) * CB + tl.arange(0, CB)
    else:
        return tl.program_id(0)


@triton.jit
def _wide(per_channel, LAST: tl.constexpr):
    """What belongs to channels, to be used with a tile."""
    if LAST:
        return per_channel[None, :]
    else:
        return per_channel


@triton.jit
def _tall(per_place, LAST: tl.constexpr):
    """What belongs to places, to be used with a tile."""
    if LAST:
        return per_place[:, None]
    else:
        return per_place


@triton.jit
def _lanes(c, step, C, S, T: tl.constexpr, BS: tl.constexpr, LAST: tl.constexpr, FAR: tl.constexpr):
    """A tile's images and places, from its first on, and where its values are in memory, from there on."""
    t = tl.arange(0, T)
    b = t // BS * step
    s = t % BS
    image = C * S
    if FAR:
        image = image.to(tl.int64)
    if LAST:
        return b, s, (b * image + s * C)[:, None] + c[None, :]
    else:
        return b, s, b * image + s + c * S


@triton.jit
def _start(b0, s0, C, S, LAST: tl.constexpr, FAR: tl.constexpr):
    """Where a tile begins in memory."""
    if FAR:
        b0 = b0.to(tl.int64)
    if LAST:
        return (b0 * S + s0) * C
    else:
        return b0 * C * S + s0


@triton.jit
def _inside(b, s, c, B, C, S, LAST: tl.constexpr):
    """Which values of a tile exist."""
    if LAST:
        return ((b < B) & (s < S))[:, None] & (c < C)[None, :]
    else:
        return (b < B) & (s < S)


@triton.jit
def _good(finite, b, B, SPLIT: tl.constexpr, LAST: tl.constexpr):
    """Which places of a tile are in finite images."""
    return _tall(tl.load(finite + b // SPLIT, mask=b < B, other=0) != 0, LAST)


@triton.jit
def _first_place(first, b, s, part, parts, S, T: tl.constexpr, BS: tl.constexpr, LAST: tl.constexpr):
    """The least place, in (b, s) order, of those that each lane met at its turn ``first``."""
    turns = tl.cdiv(S, BS)
    at = part + first // turns * (parts * (T // BS)) + _tall(b, LAST)
    order = at * S + first % turns * BS + _tall(s, LAST)
    return tl.min(tl.where(first < NOWHERE, order, NOWHERE), 0)


@triton.jit
def _apply_tiles(
    x, y, m, mad, u, a, add, finite, c, part, parts, B, C, S, ALL: tl.constexpr, FIND: tl.constexpr,
    AWAY: tl.constexpr, T: tl.constexpr, BS: tl.constexpr, LAST: tl.constexpr, FAR: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Write ``(x − u) · a + add``; say where ``m`` stands first, and what is ``mad`` away of it, if asked to.

    ``ALL`` images may be finite.
    """
    b, s, lanes = _lanes(c, parts, C, S, T, BS, LAST, FAR)
    turn = 0
    first = tl.zeros_like(lanes).to(tl.int32) + NOWHERE
    first_away = first
    for b0 in range(part, B, parts * (T // BS)):
        for s0 in range(0, S, BS):
            inside = _inside(b + b0, s + s0, c, B, C, S, LAST)
            where = lanes + _start(b0, s0, C, S, LAST, FAR)
            v = tl.load(x + where, mask=inside, other=float("nan")).to(tl.float32)
            out = (v - _wide(u, LAST)) * _wide(a, LAST) + _wide(add, LAST)
            same = v == _wide(m, LAST)
            if not ALL:
                good = _good(finite, b0 + b, B, SPLIT, LAST)
                out = tl.where(good, out, float("nan"))
                same = same & good
            tl.store(y + where, out.to(y.dtype.element_ty), mask=inside)
            if FIND:  # a lane's turns are in the order of its places
                first = tl.minimum(first, tl.where(same, turn, NOWHERE))
            if AWAY:
                near = tl.abs(v - _wide(m, LAST)) == _wide(mad, LAST)
                if not ALL:
                    near = near & good
                first_away = tl.minimum(first_away, tl.where(near, turn, NOWHERE))
            turn += 1
    least = c * 0
    least_away = c * 0
    if FIND:
        least = _first_place(first, b, s, part, parts, S, T, BS, LAST)
    if AWAY:
        least_away = _first_place(first_away, b, s, part, parts, S, T, BS, LAST)
    return least, least_away


@triton.jit
def _apply(
    x, y, weight, bias, centre, mads, used, scale, index, finite, counted, B, C, S,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, FIND: tl.constexpr, AWAY: tl.constexpr,
    T: tl.constexpr, BS: tl.constexpr, CB: tl.constexpr, LAST: tl.constexpr, VEC: tl.constexpr, FAR: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    """Normalise, and find the first place of the centre, which ``index`` holds as the least seen so far.

    With ``AWAY``, find the first place of the MAD too, which comes after those of the centres.
    """
    S = S // VEC * VEC
    c = _channels(CB, LAST)
    there = c < C
    m = tl.load(centre + c, mask=there, other=0.0)
    u = tl.load(used + c, mask=there, other=0.0)
    a = tl.load(scale + c, mask=there, other=0.0)
    mad = m
    if AWAY:
        mad = tl.load(mads + c, mask=there, other=0.0)
    if WEIGHT:
        a *= tl.load(weight + c, mask=there, other=0.0).to(tl.float32)
    add = u * 0.0
    if BIAS:
        add = tl.load(bias + c, mask=there, other=0.0).to(tl.float32)
    part = tl.program_id(1)
    parts = tl.num_programs(1)
    if tl.load(counted) == B // SPLIT:
        least, least_away = _apply_tiles(
            x, y, m, mad, u, a, add, finite, c, part, parts, B, C, S, True, FIND, AWAY, T, BS, LAST, FAR, SPLIT
        )
    else:
        least, least_away = _apply_tiles(
            x, y, m, mad, u, a, add, finite, c, part, parts, B, C, S, False, FIND, AWAY, T, BS, LAST, FAR, SPLIT
        )
    if FIND:
        tl.atomic_min(index + c, least, mask=there & (least < NOWHERE))
    if AWAY:
        tl.atomic_min(index + C + c, least_away, mask=there & (least_away < NOWHERE))


@triton.jit
def _reduce_tiles(
    g, x, u, finite, c, part, parts, B, C, S, ALL: tl.constexpr,
    T: tl.constexpr, BS: tl.constexpr, LAST: tl.constexpr, FAR: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """The sums of g and of g · (x − u)."""
    b, s, lanes = _lanes(c, parts, C, S, T, BS, LAST, FAR)
    sums = tl.zeros_like(lanes).to(tl.float32)
    products = tl.zeros_like(lanes).to(tl.float32)
    for b0 in range(part, B, parts * (T // BS)):
        for s0 in range(0, S, BS):
            counts = _inside(b + b0, s + s0, c, B, C, S, LAST)
            if not ALL:
                counts = counts & _good(finite, b0 + b, B, SPLIT, LAST)
            where = lanes + _start(b0, s0, C, S, LAST, FAR)
            v = tl.load(x + where, mask=counts, other=0.0).to(tl.float32)
            along = tl.load(g + where, mask=counts, other=0.0).to(tl.float32)
            sums += along
            products += tl.where(along == 0.0, 0.0, along * (v - _wide(u, LAST)))
    return tl.sum(sums.to(tl.float64), 0), tl.sum(products.to(tl.float64), 0)


@triton.jit
def _reduce(
    g, x, used, finite, counted, first, second, B, C, S,
    T: tl.constexpr, BS: tl.constexpr, CB: tl.constexpr, LAST: tl.constexpr, VEC: tl.constexpr, FAR: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    S = S // VEC * VEC
    c = _channels(CB, LAST)
    there = c < C
    part = tl.program_id(1)
    parts = tl.num_programs(1)
    u = tl.load(used + c, mask=there, other=0.0)
    if tl.load(counted) == B // SPLIT:
        total, product = _reduce_tiles(g, x, u, finite, c, part, parts, B, C, S, True, T, BS, LAST, FAR, SPLIT)
    else:
        total, product = _reduce_tiles(g, x, u, finite, c, part, parts, B, C, S, False, T, BS, LAST, FAR, SPLIT)
    tl.store(first + part * C + c, total, mask=there)
    tl.store(second + part * C + c, product, mask=there)


@triton.jit
def _total(sums, totals, C, parts, PARTS: tl.constexpr, CB: tl.constexpr):
    """Both sums over many parts, once for all."""
    c = tl.program_id(0) * CB + tl.arange(0, CB)
    i = tl.arange(0, PARTS)
    at = (c // C * parts * C + c % C)[None, :] + (i * C)[:, None]
    here = (i < parts)[:, None] & (c < 2 * C)[None, :]
    tl.store(totals + c, tl.sum(tl.load(sums + at, mask=here, other=0.0), 0), mask=c < 2 * C)


@triton.jit
def _gathered(first, second, c, C, parts, PARTS: tl.constexpr, LAST: tl.constexpr):
    """The sums over parts."""
    i = tl.arange(0, PARTS)
    at = _tall(i * C, LAST) + _wide(c, LAST)
    here = _tall(i < parts, LAST)
    if LAST:
        here = here & (c < C)[None, :]
    total = tl.sum(tl.load(first + at, mask=here, other=0.0), 0)
    return total.to(tl.float32), tl.sum(tl.load(second + at, mask=here, other=0.0), 0).to(tl.float32)


@triton.jit
def _rise(x, centre, mads, special, factor, c, C, S, LAST: tl.constexpr):
    """The slope of ``factor`` · MAD² in the value that the MAD comes from, whose place is ``special``."""
    here = (c < C) & (special < NOWHERE)
    image = (special // S).to(tl.int64)
    where = special.to(tl.int64) * C + c if LAST else image * C * S + c * S + special % S
    v = tl.load(x + where, mask=here, other=0.0).to(tl.float32)
    away = v - tl.load(centre + c, mask=here, other=0.0)
    mad = tl.load(mads + c, mask=here, other=0.0)
    return 2.0 * factor * mad * ((away > 0).to(tl.float32) - (away < 0).to(tl.float32))


@triton.jit
def _coefficients(
    sum_g, sum_gx, rise, weight, deviation, scale, counted, d_weight, d_bias, c, C, S, share,
    WEIGHT: tl.constexpr, MEAN: tl.constexpr, AWAY: tl.constexpr, SPLIT: tl.constexpr, WRITE,
):  # fmt: skip
    """What a gradient is made of: ``a · g + slope · (x − centre) + shift``; ``extra`` at the median, ``up`` at the MAD.

    With ``AWAY``, ``rise`` is the slope of the variance in the one value that it comes from.
    """
    there = c < C
    r = tl.load(scale + c, mask=there, other=0.0)
    w = tl.load(weight + c, mask=there, other=0.0).to(tl.float32) if WEIGHT else 1.0
    n = tl.maximum(tl.load(counted).to(tl.int64) * S * SPLIT, 1).to(tl.float32)
    drift = tl.load(deviation + c, mask=there, other=0.0).to(tl.float32)
    gain = r * sum_gx
    if WRITE:
        tl.store(d_bias + c, sum_g, mask=there)
        tl.store(d_weight + c, gain, mask=there)
    d_centre = -share * w * r * sum_g
    d_variance = -0.5 * share * w * r * r * gain
    slope = 2.0 * d_variance / n
    fall = tl.where(slope == 0.0, 0.0, slope * drift)
    up = slope * 0.0
    if MEAN:  # the gradient of the mean's statistics, about the mean
        shift = (d_centre - fall) / n
        extra = shift * 0.0
    else:
        if AWAY:
            slope = slope * 0.0
            up = tl.where(d_variance == 0.0, 0.0, d_variance * rise)
            fall = up
        extra = d_centre - fall
        shift = extra * 0.0
    return w * r, slope, shift, extra, up


@triton.jit
def _lane_of(special, b, s, part, parts, S, T: tl.constexpr, BS: tl.constexpr, LAST: tl.constexpr):
    """The lane and the turn of a place: which lane of a program's tiles has it, and where the tile begins."""
    image = special // S
    place = special - image * S
    own = (_tall(b, LAST) + part) % (parts * (T // BS)) == _wide(image % (parts * (T // BS)), LAST)
    own = own & (_tall(s, LAST) == _wide(place % BS, LAST))
    return own, image // (parts * (T // BS)) * (parts * (T // BS)) + part, place // BS * BS


@triton.jit
def _combine_tiles(
    g, x, dx, a, slope, shift, extra, up, m, special, special_away, finite, c, part, parts, B, C, S,
    ALL: tl.constexpr, AWAY: tl.constexpr, T: tl.constexpr, BS: tl.constexpr, LAST: tl.constexpr, FAR: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    """Write the gradient. ``AWAY`` has neither slope nor shift: x is not read, and two places get something."""
    b, s, lanes = _lanes(c, parts, C, S, T, BS, LAST, FAR)
    own, at_image, at_place = _lane_of(special, b, s, part, parts, S, T, BS, LAST)
    if AWAY:
        own_away, image_away, place_away = _lane_of(special_away, b, s, part, parts, S, T, BS, LAST)
    for b0 in range(part, B, parts * (T // BS)):
        for s0 in range(0, S, BS):
            inside = _inside(b + b0, s + s0, c, B, C, S, LAST)
            counts = inside
            if not ALL:
                counts = inside & _good(finite, b0 + b, B, SPLIT, LAST)
            where = lanes + _start(b0, s0, C, S, LAST, FAR)
            along = tl.load(g + where, mask=counts, other=0.0).to(tl.float32)
            now = tl.where((at_image == b0) & (at_place == s0), extra, 0.0)
            if AWAY:
                now_away = tl.where((image_away == b0) & (place_away == s0), up, 0.0)
                out = _wide(a, LAST) * along + tl.where(own, _wide(now, LAST), 0.0)
                out += tl.where(own_away, _wide(now_away, LAST), 0.0)
            else:
                v = tl.load(x + where, mask=counts, other=0.0).to(tl.float32)
                away = tl.where(_wide(slope, LAST) == 0.0, 0.0, _wide(slope, LAST) * (v - _wide(m, LAST)))
                out = _wide(a, LAST) * along + away + (_wide(shift, LAST) + tl.where(own, _wide(now, LAST), 0.0))
            if not ALL:
                out = tl.where(counts, out, 0.0)
            tl.store(dx + where, out.to(dx.dtype.element_ty), mask=inside)


@triton.jit
def _combine(
    g, x, dx, weight, centre, mads, deviation, index, used, scale, finite, counted, first, second, d_weight, d_bias,
    B, C, S, sums, share, factor,
    WEIGHT: tl.constexpr, MEAN: tl.constexpr, AWAY: tl.constexpr, WHOLE: tl.constexpr, PARTS: tl.constexpr,
    T: tl.constexpr, BS: tl.constexpr, CB: tl.constexpr, LAST: tl.constexpr, VEC: tl.constexpr, FAR: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    """The gradient of the input, from what ``_reduce`` summed or, for ``WHOLE`` channels, from sums made here."""
    S = S // VEC * VEC
    c = _channels(CB, LAST)
    there = c < C
    part = tl.program_id(1)
    parts = tl.num_programs(1)
    every = tl.load(counted) == B // SPLIT
    if WHOLE:
        u = tl.load(used + c, mask=there, other=0.0)
        if every:
            total, product = _reduce_tiles(g, x, u, finite, c, part, parts, B, C, S, True, T, BS, LAST, FAR, SPLIT)
        else:
            total, product = _reduce_tiles(g, x, u, finite, c, part, parts, B, C, S, False, T, BS, LAST, FAR, SPLIT)
        sum_g = total.to(tl.float32)
        sum_gx = product.to(tl.float32)
    else:
        sum_g, sum_gx = _gathered(first, second, c, C, sums, PARTS, LAST)
    special = tl.load(index + c, mask=there, other=0)
    special_away = special
    rise = 0.0
    if AWAY:
        special_away = tl.load(index + C + c, mask=there, other=0)
        rise = _rise(x, centre, mads, special_away, factor, c, C, S, LAST)
    a, slope, shift, extra, up = _coefficients(
        sum_g, sum_gx, rise, weight, deviation, scale, counted, d_weight, d_bias, c, C, S, share, WEIGHT, MEAN, AWAY,
        SPLIT, part == 0,
    )  # fmt: skip
    m = tl.load(centre + c, mask=there, other=0.0)
    if every:
        _combine_tiles(
            g, x, dx, a, slope, shift, extra, up, m, special, special_away, finite, c, part, parts, B, C, S, True,
            AWAY, T, BS, LAST, FAR, SPLIT,
        )  # fmt: skip
    else:
        _combine_tiles(
            g, x, dx, a, slope, shift, extra, up, m, special, special_away, finite, c, part, parts, B, C, S, False,
            AWAY, T, BS, LAST, FAR, SPLIT,
        )  # fmt: skip
