"""The Triton kernels behind ``gpu``. Input is a contiguous ``(B, C, S)``; one program works for one channel.

``finite`` marks the images that are, and ``counted`` their number. Sums are made of parts in a fixed order, and of what
several programs write only the set matters, or the least: every result is the same each time.
"""

from __future__ import annotations

import triton
import triton.language as tl

MAD_TO_SIGMA = tl.constexpr(1.4826)


@triton.jit
def _key(x):
    """A float32 as an unsigned number in the same order."""
    bits = x.to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 != 0, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def _unkey(key):
    bits = tl.where(key >> 31 != 0, key & 0x7FFFFFFF, key ^ 0xFFFFFFFF)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _kth(keys, k):
    """The k-th smallest key, from 0; keys that do not count are the largest there is."""
    found = tl.zeros((), tl.uint32)
    one = tl.full((), 1, tl.uint32)
    for i in tl.static_range(32):
        tried = found | (one << (31 - i))
        found = tl.where(tl.sum((keys < tried).to(tl.int32)) <= k, tried, found)
    return found


@triton.jit
def _small_forward(
    x,
    y,
    weight,
    bias,
    held_centre,
    held_variance,
    centre_out,
    variance_out,
    deviation_out,
    index_out,
    used_out,
    scale_out,
    finite,
    counted,
    B,
    C,
    S,
    eps,
    share,
    HELD: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    AGAIN: tl.constexpr,
    BB: tl.constexpr,
    BS: tl.constexpr,
):
    """One channel, in registers.

    The first launch takes all images for finite and notes those that are not. The second one does it again without
    them, or ends at once where there are none.
    """
    c = tl.program_id(0)
    if AGAIN:
        if tl.load(counted) == B:
            return
    b = tl.arange(0, BB)
    s = tl.arange(0, BS)
    inside = (b[:, None] < B) & (s[None, :] < S)
    place = (b[:, None].to(tl.int64) * C + c) * S + s[None, :]
    v = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    if AGAIN:
        good = tl.load(finite + b, mask=b < B, other=0) != 0
        n = tl.load(counted) * S
    else:
        good = b < B
        n = B * S
        odd = tl.max((inside & ((v - v) != 0.0)).to(tl.int32), 1)
        if tl.max(odd) != 0:
            was = tl.atomic_xchg(finite + b, tl.zeros((BB,), tl.int32), mask=odd != 0)
            gone = tl.sum(tl.where((odd != 0) & (was != 0), 1, 0))
            if gone != 0:
                tl.atomic_add(counted, -gone)
    counts = inside & good[:, None]
    key = _kth(tl.where(counts, _key(v), 0xFFFFFFFF), (n - 1) // 2)
    m = _unkey(key) + 0.0
    d = tl.where(counts, v - m, 0.0)
    total = tl.sum(d.to(tl.float64))
    size = tl.maximum(n, 1).to(tl.float64)
    variance = (tl.sum(d * d).to(tl.float64) / size).to(tl.float32)
    order = tl.where(counts & (v == m), b[:, None] * S + s[None, :], 2147483647)
    m = tl.where(n > 0, m, float("nan"))
    variance = tl.where(n > 0, variance, float("nan"))
    tl.store(centre_out + c, m)
    tl.store(variance_out + c, variance)
    tl.store(deviation_out + c, total)
    tl.store(index_out + c, tl.min(order))
    used, spread = m, variance
    if HELD:
        hc = tl.load(held_centre + c).to(tl.float32)
        hv = tl.load(held_variance + c).to(tl.float32)
        used = tl.where(n > 0, share * m + (1.0 - share) * hc, hc)
        spread = tl.where(n > 0, share * variance + (1.0 - share) * hv, hv)
    r = 1.0 / tl.sqrt(spread + eps)
    w = tl.load(weight + c).to(tl.float32) if WEIGHT else 1.0
    add = tl.load(bias + c).to(tl.float32) if BIAS else 0.0
    tl.store(used_out + c, used)
    tl.store(scale_out + c, r)
    out = (v - used) * (r * w) + add
    out = tl.where(good[:, None], out, float("nan"))
    tl.store(y + place, out.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _bracket(x, cuts, B, C, S, N, stride, low_rank, high_rank, SAMPLES: tl.constexpr):
    """Two values of a jittered sample that very probably enclose the median, and what divides the space between them.

    Cuts 0 to 14 go from the lower value to the upper one, and cut 15 is just above that.
    """
    c = tl.program_id(0)
    j = tl.arange(0, SAMPLES)
    # A fixed hash jitters the positions, so that no period of the data can hide from the sample.
    h = j.to(tl.uint32) * 2654435761
    h = (h ^ (h >> 15)) * 2246822519
    h = h ^ (h >> 13)
    position = tl.minimum(j.to(tl.int64) * stride + h.to(tl.int64) % stride, N - 1)
    b = position // S
    v = tl.load(x + (b * C + c) * S + position % S).to(tl.float32)
    keys = _key(tl.where(v == v, v, float("inf")))
    low = _unkey(_kth(keys, low_rank)) + 0.0
    high_key = _kth(keys, high_rank)
    high = _unkey(high_key) + 0.0
    i = tl.arange(0, 16)
    between = low + (high - low) * (i.to(tl.float32) / 14.0)
    between = tl.where(i == 14, high, between)
    above = _unkey(_key(high) + 1)
    tl.store(cuts + c * 16 + i, tl.where(i == 15, above, between))


@triton.jit
def _pivot(low, high):
    """A finite value near the median, to sum moments about."""
    low = tl.where(tl.abs(low) < float("inf"), low, 0.0)
    high = tl.where(tl.abs(high) < float("inf"), high, 0.0)
    return 0.5 * low + 0.5 * high


@triton.jit
def _survey(
    x,
    cuts,
    below,
    first,
    second,
    finite,
    counted,
    B,
    C,
    S,
    images,
    BB: tl.constexpr,
    BS: tl.constexpr,
):
    """Read everything once: how much is below each cut, and the shifted moments.

    Every lane counts for itself, two cuts in one number, so that lanes meet only at the end.
    """
    c = tl.program_id(0)
    part = tl.program_id(1)
    i = tl.arange(0, 8)
    even = tl.load(cuts + c * 16 + 2 * i)
    odd = tl.load(cuts + c * 16 + 2 * i + 1)
    p = _pivot(tl.load(cuts + c * 16), tl.load(cuts + c * 16 + 14))
    counts = tl.zeros((BB, BS, 8), tl.int32)
    sums = tl.zeros((BB, BS), tl.float32)
    squares = tl.zeros((BB, BS), tl.float32)
    last = tl.minimum(part * images + images, B)
    for b0 in range(part * images, last, BB):
        b = b0 + tl.arange(0, BB)
        for s0 in range(0, S, BS):
            s = s0 + tl.arange(0, BS)
            inside = (b[:, None] < last) & (s[None, :] < S)
            v = tl.load(x + (b[:, None].to(tl.int64) * C + c) * S + s[None, :], mask=inside, other=0.0).to(tl.float32)
            d = tl.where(inside, v - p, 0.0)
            sums += d
            squares += d * d
            known = tl.where(inside, v, float("inf"))[:, :, None]  # padding is below no cut
            counts += (known < even[None, None, :]).to(tl.int32) + ((known < odd[None, None, :]).to(tl.int32) << 16)
            strange = tl.max((inside & ((v - v) != 0.0)).to(tl.int32), 1)
            if tl.max(strange) != 0:
                was = tl.atomic_xchg(finite + b, tl.zeros((BB,), tl.int32), mask=strange != 0)
                gone = tl.sum(tl.where((strange != 0) & (was != 0), 1, 0))
                if gone != 0:
                    tl.atomic_add(counted, -gone)
    at = c * tl.num_programs(1) + part
    tl.store(below + at * 16 + 2 * i, tl.sum(tl.sum(counts & 0xFFFF, 0), 0))
    tl.store(below + at * 16 + 2 * i + 1, tl.sum(tl.sum(counts >> 16, 0), 0))
    tl.store(first + at, tl.sum(sums.to(tl.float64)))
    tl.store(second + at, tl.sum(squares.to(tl.float64)))


@triton.jit
def _choose(below, counted, rank, chosen, B, S, parts):
    """Between which cuts the median is, and its rank there; −1 where the bracket missed, or an image is not finite."""
    c = tl.program_id(0)
    i = tl.arange(0, 16)
    table = tl.zeros((16,), tl.int32)
    for part in range(0, parts):
        table += tl.load(below + (c * parts + part) * 16 + i)
    k = (B * S - 1) // 2
    # The median is at least a cut below which there are k values at most, and below a cut that has more under it.
    bin = tl.max(tl.where(table <= k, i, -1))
    under = tl.sum(tl.where(i == bin, table, 0))
    missed = (bin < 0) | (bin == 15) | (tl.load(counted) != B)
    tl.store(chosen + c, tl.where(missed, -1, bin))
    tl.store(rank + c, k - under)


@triton.jit
def _collect(
    x,
    cuts,
    chosen,
    collected,
    filled,
    B,
    C,
    S,
    images,
    cap,
    BB: tl.constexpr,
    BS: tl.constexpr,
):
    """Read everything again and keep what is between those cuts, which is little; what equals an end only counts."""
    c = tl.program_id(0)
    part = tl.program_id(1)
    bin = tl.load(chosen + c)
    if bin < 0:
        return
    low = tl.load(cuts + c * 16 + bin)
    high = tl.load(cuts + c * 16 + tl.minimum(bin + 1, 14))
    at_low = tl.zeros((BB, BS), tl.int32)
    last = tl.minimum(part * images + images, B)
    for b0 in range(part * images, last, BB):
        b = b0 + tl.arange(0, BB)
        for s0 in range(0, S, BS):
            s = s0 + tl.arange(0, BS)
            inside = (b[:, None] < last) & (s[None, :] < S)
            v = tl.load(x + (b[:, None].to(tl.int64) * C + c) * S + s[None, :], mask=inside, other=0.0).to(tl.float32)
            at_low += (inside & (v == low)).to(tl.int32)
            flat = tl.reshape((inside & (v > low) & (v < high)).to(tl.int32), (BB * BS,))
            total = tl.sum(flat)
            if total > 0:
                slot = tl.atomic_add(filled + c, total) + tl.cumsum(flat, 0) - 1
                keep = (flat > 0) & (slot < cap)
                tl.store(collected + c.to(tl.int64) * cap + slot, tl.reshape(v, (BB * BS,)), mask=keep)
    equal = tl.sum(at_low)
    if equal > 0:
        tl.atomic_add(filled + C + c, equal)


@triton.jit
def _count_below(x, finite, c, B, C, S, tried, BB: tl.constexpr, BS: tl.constexpr):
    """How many values of a channel, in finite images, have a smaller key."""
    total = tl.zeros((), tl.int32)
    for b0 in range(0, B, BB):
        b = b0 + tl.arange(0, BB)
        good = tl.load(finite + b, mask=b < B, other=0) != 0
        for s0 in range(0, S, BS):
            s = s0 + tl.arange(0, BS)
            inside = good[:, None] & (s[None, :] < S)
            v = tl.load(x + (b[:, None].to(tl.int64) * C + c) * S + s[None, :], mask=inside, other=0.0).to(tl.float32)
            total += tl.sum((inside & (_key(v) < tried)).to(tl.int32))
    return total


@triton.jit
def _finish(
    x,
    cuts,
    first,
    second,
    chosen,
    rank,
    collected,
    filled,
    finite,
    counted,
    held_centre,
    held_variance,
    centre_out,
    variance_out,
    deviation_out,
    index_out,
    used_out,
    scale_out,
    B,
    C,
    S,
    cap,
    parts,
    eps,
    share,
    HELD: tl.constexpr,
    PARTS: tl.constexpr,
    BB: tl.constexpr,
    BS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    c = tl.program_id(0)
    i = tl.arange(0, PARTS)
    here = i < parts
    total = tl.sum(tl.load(first + c * parts + i, mask=here, other=0.0))
    square = tl.sum(tl.load(second + c * parts + i, mask=here, other=0.0))
    p = _pivot(tl.load(cuts + c * 16), tl.load(cuts + c * 16 + 14))
    good = tl.load(counted)
    n = good * S
    k = (n - 1) // 2
    one = tl.full((), 1, tl.uint32)
    bin = tl.load(chosen + c)
    held = tl.load(filled + c)
    equal = tl.load(filled + C + c)
    left = tl.load(rank + c) - equal
    m = tl.load(cuts + c * 16 + tl.maximum(bin, 0))
    if (bin >= 0) & (left < 0):
        m = m + 0.0
    elif (bin >= 0) & (left >= held):
        m = tl.load(cuts + c * 16 + 14)
    elif (bin >= 0) & (held <= cap):
        found = tl.zeros((), tl.uint32)
        for bit in range(0, 32):
            tried = found | (one << (31 - bit))
            count = tl.zeros((), tl.int32)
            for j0 in range(0, held, CHUNK):
                j = j0 + tl.arange(0, CHUNK)
                v = tl.load(collected + c.to(tl.int64) * cap + j, mask=j < held, other=0.0)
                count += tl.sum(((j < held) & (_key(v) < tried)).to(tl.int32))
            found = tl.where(count <= left, tried, found)
        m = _unkey(found)
    else:
        found = tl.zeros((), tl.uint32)
        for bit in range(0, 32):
            tried = found | (one << (31 - bit))
            count = _count_below(x, finite, c, B, C, S, tried, BB, BS)
            found = tl.where(count <= k, tried, found)
        m = _unkey(found)
    m = m + 0.0
    if good == B:
        e = m.to(tl.float64) - p.to(tl.float64)
        deviation = total - n.to(tl.float64) * e
        square = square - 2.0 * e * total + n.to(tl.float64) * e * e
    else:
        sums = tl.zeros((BB, BS), tl.float64)
        squares = tl.zeros((BB, BS), tl.float64)
        for b0 in range(0, B, BB):
            b = b0 + tl.arange(0, BB)
            usable = tl.load(finite + b, mask=b < B, other=0) != 0
            for s0 in range(0, S, BS):
                s = s0 + tl.arange(0, BS)
                inside = usable[:, None] & (s[None, :] < S)
                v = tl.load(x + (b[:, None].to(tl.int64) * C + c) * S + s[None, :], mask=inside, other=0.0)
                d = tl.where(inside, v.to(tl.float32) - m, 0.0)
                sums += d.to(tl.float64)
                squares += (d * d).to(tl.float64)
        deviation = tl.sum(sums)
        square = tl.sum(squares)
    variance = (tl.maximum(square, 0.0) / tl.maximum(n, 1).to(tl.float64)).to(tl.float32)
    m = tl.where(n > 0, m, float("nan"))
    variance = tl.where(n > 0, variance, float("nan"))
    used, spread = m, variance
    if HELD:
        hc = tl.load(held_centre + c).to(tl.float32)
        hv = tl.load(held_variance + c).to(tl.float32)
        used = tl.where(n > 0, share * m + (1.0 - share) * hc, hc)
        spread = tl.where(n > 0, share * variance + (1.0 - share) * hv, hv)
    tl.store(centre_out + c, m)
    tl.store(variance_out + c, variance)
    tl.store(deviation_out + c, deviation)
    tl.store(index_out + c, 2147483647)
    tl.store(used_out + c, used)
    tl.store(scale_out + c, 1.0 / tl.sqrt(spread + eps))


@triton.jit
def _apply(
    x,
    y,
    weight,
    bias,
    centre,
    used,
    scale,
    index,
    finite,
    B,
    C,
    S,
    images,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    FIND: tl.constexpr,
    BB: tl.constexpr,
    BS: tl.constexpr,
):
    c = tl.program_id(0)
    part = tl.program_id(1)
    m = tl.load(centre + c)
    u = tl.load(used + c)
    a = tl.load(scale + c)
    if WEIGHT:
        a *= tl.load(weight + c).to(tl.float32)
    add = tl.load(bias + c).to(tl.float32) if BIAS else 0.0
    least = tl.full((BB, BS), 2147483647, tl.int32)
    last = tl.minimum(part * images + images, B)
    for b0 in range(part * images, last, BB):
        b = b0 + tl.arange(0, BB)
        good = tl.load(finite + b, mask=b < last, other=0) != 0
        for s0 in range(0, S, BS):
            s = s0 + tl.arange(0, BS)
            inside = (b[:, None] < last) & (s[None, :] < S)
            place = (b[:, None].to(tl.int64) * C + c) * S + s[None, :]
            v = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
            out = tl.where(good[:, None], (v - u) * a + add, float("nan"))
            tl.store(y + place, out.to(y.dtype.element_ty), mask=inside)
            if FIND:
                order = tl.where(inside & good[:, None] & (v == m), b[:, None] * S + s[None, :], 2147483647)
                least = tl.minimum(least, order)
    if FIND:
        lowest = tl.min(least)
        if lowest < 2147483647:
            tl.atomic_min(index + c, lowest)


@triton.jit
def _small_backward(
    g,
    x,
    dx,
    weight,
    centre,
    deviation,
    index,
    used,
    scale,
    finite,
    counted,
    d_weight,
    d_bias,
    B,
    C,
    S,
    share,
    WEIGHT: tl.constexpr,
    MEAN: tl.constexpr,
    BB: tl.constexpr,
    BS: tl.constexpr,
):
    c = tl.program_id(0)
    b = tl.arange(0, BB)
    s = tl.arange(0, BS)
    good = tl.load(finite + b, mask=b < B, other=0) != 0
    inside = (b[:, None] < B) & (s[None, :] < S)
    counts = inside & good[:, None]
    place = (b[:, None].to(tl.int64) * C + c) * S + s[None, :]
    v = tl.load(x + place, mask=counts, other=0.0).to(tl.float32)
    along = tl.load(g + place, mask=counts, other=0.0).to(tl.float32)
    u = tl.load(used + c)
    sum_g = tl.sum(along.to(tl.float64)).to(tl.float32)
    sum_gx = tl.sum(tl.where(along == 0.0, 0.0, along * (v - u)).to(tl.float64)).to(tl.float32)
    a, slope, shift, extra = _coefficients(
        sum_g, sum_gx, weight, centre, deviation, scale, counted, d_weight, d_bias, c, S, share, WEIGHT, MEAN, True
    )
    m = tl.load(centre + c)
    away = tl.where(slope == 0.0, 0.0, slope * (v - m))
    out = a * along + away + shift
    order = b[:, None] * S + s[None, :]
    out += tl.where(order == tl.load(index + c), extra, 0.0)
    tl.store(dx + place, tl.where(counts, out, 0.0).to(dx.dtype.element_ty), mask=inside)


@triton.jit
def _coefficients(
    sum_g,
    sum_gx,
    weight,
    centre,
    deviation,
    scale,
    counted,
    d_weight,
    d_bias,
    c,
    S,
    share,
    WEIGHT: tl.constexpr,
    MEAN: tl.constexpr,
    WRITE,
):
    """What a gradient is made of: ``a · g + slope · (x − centre) + shift``, and ``extra`` at the median."""
    r = tl.load(scale + c)
    w = tl.load(weight + c).to(tl.float32) if WEIGHT else 1.0
    n = tl.maximum(tl.load(counted) * S, 1).to(tl.float32)
    drift = tl.load(deviation + c).to(tl.float32)
    gain = r * sum_gx
    if WRITE:
        tl.store(d_bias + c, sum_g)
        tl.store(d_weight + c, gain)
    d_centre = -share * w * r * sum_g
    d_variance = -0.5 * share * w * r * r * gain
    slope = 2.0 * d_variance / n
    if MEAN:  # the gradient of the mean's statistics, about the mean
        shift = d_centre / n - tl.where(slope == 0.0, 0.0, slope * drift / n)
        extra = 0.0
    else:
        shift = 0.0
        extra = d_centre - tl.where(slope == 0.0, 0.0, slope * drift)
    return w * r, slope, shift, extra


@triton.jit
def _reduce(
    g,
    x,
    used,
    finite,
    first,
    second,
    B,
    C,
    S,
    images,
    BB: tl.constexpr,
    BS: tl.constexpr,
):
    c = tl.program_id(0)
    part = tl.program_id(1)
    u = tl.load(used + c)
    last = tl.minimum(part * images + images, B)
    sums = tl.zeros((BB, BS), tl.float32)
    products = tl.zeros((BB, BS), tl.float32)
    for b0 in range(part * images, last, BB):
        b = b0 + tl.arange(0, BB)
        good = tl.load(finite + b, mask=b < last, other=0) != 0
        for s0 in range(0, S, BS):
            s = s0 + tl.arange(0, BS)
            counts = good[:, None] & (s[None, :] < S)
            place = (b[:, None].to(tl.int64) * C + c) * S + s[None, :]
            v = tl.load(x + place, mask=counts, other=0.0).to(tl.float32)
            along = tl.load(g + place, mask=counts, other=0.0).to(tl.float32)
            sums += along
            products += tl.where(along == 0.0, 0.0, along * (v - u))
    at = c * tl.num_programs(1) + part
    tl.store(first + at, tl.sum(sums.to(tl.float64)))
    tl.store(second + at, tl.sum(products.to(tl.float64)))


@triton.jit
def _combine(
    g,
    x,
    dx,
    weight,
    centre,
    deviation,
    index,
    used,
    scale,
    finite,
    counted,
    first,
    second,
    d_weight,
    d_bias,
    B,
    C,
    S,
    images,
    parts,
    share,
    WEIGHT: tl.constexpr,
    MEAN: tl.constexpr,
    PARTS: tl.constexpr,
    BB: tl.constexpr,
    BS: tl.constexpr,
):
    c = tl.program_id(0)
    part = tl.program_id(1)
    i = tl.arange(0, PARTS)
    sum_g = tl.sum(tl.load(first + c * parts + i, mask=i < parts, other=0.0)).to(tl.float32)
    sum_gx = tl.sum(tl.load(second + c * parts + i, mask=i < parts, other=0.0)).to(tl.float32)
    a, slope, shift, extra = _coefficients(
        sum_g, sum_gx, weight, centre, deviation, scale, counted, d_weight, d_bias, c, S, share, WEIGHT, MEAN, part == 0
    )
    m = tl.load(centre + c)
    special = tl.load(index + c)
    last = tl.minimum(part * images + images, B)
    for b0 in range(part * images, last, BB):
        b = b0 + tl.arange(0, BB)
        good = tl.load(finite + b, mask=b < last, other=0) != 0
        for s0 in range(0, S, BS):
            s = s0 + tl.arange(0, BS)
            inside = (b[:, None] < last) & (s[None, :] < S)
            counts = inside & good[:, None]
            place = (b[:, None].to(tl.int64) * C + c) * S + s[None, :]
            v = tl.load(x + place, mask=counts, other=0.0).to(tl.float32)
            along = tl.load(g + place, mask=counts, other=0.0).to(tl.float32)
            out = a * along + tl.where(slope == 0.0, 0.0, slope * (v - m)) + shift
            out += tl.where(b[:, None] * S + s[None, :] == special, extra, 0.0)
            tl.store(dx + place, tl.where(counts, out, 0.0).to(dx.dtype.element_ty), mask=inside)


@triton.jit
def _image_moments(x, means, withins, finite, counted, planes, C, S, BP: tl.constexpr, BS: tl.constexpr):
    """Each image's own mean and variance in each channel; the second reading of a plane is from nearby."""
    q = tl.program_id(0).to(tl.int64) * BP + tl.arange(0, BP)
    there = q < planes
    sums = tl.zeros((BP, BS), tl.float32)
    odd = tl.zeros((BP, BS), tl.int32)
    for s0 in range(0, S, BS):
        s = s0 + tl.arange(0, BS)
        inside = there[:, None] & (s[None, :] < S)
        v = tl.load(x + q[:, None] * S + s[None, :], mask=inside, other=0.0).to(tl.float32)
        sums += v
        odd |= ((v - v) != 0.0).to(tl.int32)
    mean = tl.sum(sums, 1) / S
    squares = tl.zeros((BP, BS), tl.float32)
    for s0 in range(0, S, BS):
        s = s0 + tl.arange(0, BS)
        inside = there[:, None] & (s[None, :] < S)
        v = tl.load(x + q[:, None] * S + s[None, :], mask=inside, other=0.0).to(tl.float32)
        d = tl.where(inside, v - mean[:, None], 0.0)
        squares += d * d
    tl.store(means + q, mean, mask=there)
    tl.store(withins + q, tl.sum(squares, 1) / S, mask=there)
    bad = tl.max(odd, 1)
    if tl.max(bad) != 0:
        was = tl.atomic_xchg(finite + q // C, tl.zeros((BP,), tl.int32), mask=there & (bad != 0))
        gone = tl.sum(tl.where(there & (bad != 0) & (was != 0), 1, 0))
        if gone != 0:
            tl.atomic_add(counted, -gone)


@triton.jit
def _place(keys, mask, b, key, k):
    """Which image has the k-th smallest key: of equal ones, the one that a stable sort has there."""
    less = tl.sum((mask & (keys < key)).to(tl.int32))
    equal = mask & (keys == key)
    nth = tl.cumsum(equal.to(tl.int32), 0)
    return tl.sum(tl.where(equal & (nth == k - less + 1), b, 0))


@triton.jit
def _middle(values, mask, b, low, high):
    """The mean of the values of ranks ``low`` and ``high`` (the same, or the next), and which images have them."""
    keys = tl.where(mask, _key(values), 0xFFFFFFFF)
    first = _kth(keys, low)
    upto = tl.sum((keys <= first).to(tl.int32))
    next_one = tl.min(tl.where(keys > first, keys, 0xFFFFFFFF))
    second = tl.where(upto > high, first, next_one)
    return (
        0.5 * _unkey(first) + 0.5 * _unkey(second),
        _place(keys, mask, b, first, low),
        _place(keys, mask, b, second, high),
    )


@triton.jit
def _image_finish(
    means,
    withins,
    finite,
    counted,
    held_centre,
    held_variance,
    centre_out,
    variance_out,
    deviation_out,
    used_out,
    scale_out,
    chosen,
    slopes,
    B,
    C,
    S,
    eps,
    share,
    HELD: tl.constexpr,
    BB: tl.constexpr,
):
    c = tl.program_id(0)
    b = tl.arange(0, BB)
    good = tl.load(finite + b, mask=b < B, other=0) != 0
    n = tl.load(counted)
    low = tl.maximum(n - 1, 0) // 2
    high = n // 2
    mean = tl.load(means + b * C + c, mask=good, other=0.0)
    within = tl.load(withins + b * C + c, mask=good, other=0.0)
    within = tl.where(tl.abs(mean) < float("inf"), within, float("inf"))  # an image of huge values stays one image
    m, i1, i2 = _middle(mean, good, b, low, high)
    inner, j1, j2 = _middle(within, good, b, low, high)
    away = mean - m
    mad, k1, k2 = _middle(tl.abs(away), good, b, low, high)
    variance = inner + (MAD_TO_SIGMA * mad) * (MAD_TO_SIGMA * mad)
    m = tl.where(n > 0, m, float("nan"))
    variance = tl.where(n > 0, variance, float("nan"))
    used, spread = m, variance
    if HELD:
        hc = tl.load(held_centre + c).to(tl.float32)
        hv = tl.load(held_variance + c).to(tl.float32)
        used = tl.where(n > 0, share * m + (1.0 - share) * hc, hc)
        spread = tl.where(n > 0, share * variance + (1.0 - share) * hv, hv)
    tl.store(centre_out + c, m)
    tl.store(variance_out + c, variance)
    tl.store(deviation_out + c, tl.sum(tl.where(good, away, 0.0).to(tl.float64)) * S)
    tl.store(used_out + c, used)
    tl.store(scale_out + c, 1.0 / tl.sqrt(spread + eps))
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
def _image_combine(
    g,
    x,
    dx,
    weight,
    means,
    chosen,
    slopes,
    scale,
    finite,
    first,
    second,
    d_weight,
    d_bias,
    B,
    C,
    S,
    images,
    parts,
    share,
    WEIGHT: tl.constexpr,
    PARTS: tl.constexpr,
    BB: tl.constexpr,
    BS: tl.constexpr,
):
    c = tl.program_id(0)
    part = tl.program_id(1)
    i = tl.arange(0, PARTS)
    sum_g = tl.sum(tl.load(first + c * parts + i, mask=i < parts, other=0.0)).to(tl.float32)
    sum_gx = tl.sum(tl.load(second + c * parts + i, mask=i < parts, other=0.0)).to(tl.float32)
    r = tl.load(scale + c)
    w = tl.load(weight + c).to(tl.float32) if WEIGHT else 1.0
    gain = r * sum_gx
    if part == 0:
        tl.store(d_bias + c, sum_g)
        tl.store(d_weight + c, gain)
    d_centre = -share * w * r * sum_g
    d_variance = -0.5 * share * w * r * r * gain
    up1 = d_variance * tl.load(slopes + c)
    up2 = d_variance * tl.load(slopes + C + c)
    d_centre -= up1 + up2
    i1 = tl.load(chosen + c)
    i2 = tl.load(chosen + C + c)
    j1 = tl.load(chosen + 2 * C + c)
    j2 = tl.load(chosen + 3 * C + c)
    k1 = tl.load(chosen + 4 * C + c)
    k2 = tl.load(chosen + 5 * C + c)
    a = w * r
    last = tl.minimum(part * images + images, B)
    for b0 in range(part * images, last, BB):
        b = b0 + tl.arange(0, BB)
        good = tl.load(finite + b, mask=b < last, other=0) != 0
        mean = tl.load(means + b * C + c, mask=good, other=0.0)
        shift = 0.5 * d_centre * ((b == i1).to(tl.float32) + (b == i2).to(tl.float32))
        shift = (shift + up1 * (b == k1).to(tl.float32) + up2 * (b == k2).to(tl.float32)) / S
        slope = d_variance * ((b == j1).to(tl.float32) + (b == j2).to(tl.float32)) / S
        for s0 in range(0, S, BS):
            s = s0 + tl.arange(0, BS)
            inside = (b[:, None] < last) & (s[None, :] < S)
            counts = inside & good[:, None]
            place = (b[:, None].to(tl.int64) * C + c) * S + s[None, :]
            v = tl.load(x + place, mask=counts, other=0.0).to(tl.float32)
            along = tl.load(g + place, mask=counts, other=0.0).to(tl.float32)
            away = tl.where(slope[:, None] == 0.0, 0.0, slope[:, None] * (v - mean[:, None]))
            out = a * along + shift[:, None] + away
            tl.store(dx + place, tl.where(counts, out, 0.0).to(dx.dtype.element_ty), mask=inside)
