"""Triton: the exact median of each channel, or of its deviations, and the variance about it. See ``gpu``."""

from __future__ import annotations

import triton
import triton.language as tl

from .passes import NOWHERE, _channels, _inside, _lanes, _start, _wide
from .search import ROUNDS, _aim, _by_place, _mark, _mixed, _narrow, _search

HUGE = tl.constexpr(3.4028234663852886e38)


# --- a channel in registers -------------------------------------------------------------------------------------------


@triton.jit
def _small_forward(
    x, y, weight, bias, held_centre, held_variance,
    centre_out, variance_out, deviation_out, index_out, used_out, scale_out, finite, counted, B, C, S, eps, share,
    HELD: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr, AGAIN: tl.constexpr,
    T: tl.constexpr, BS: tl.constexpr, VEC: tl.constexpr,
):  # fmt: skip
    """A whole channel, in registers.

    The first launch takes all images for finite and notes those that are not. The second one does it again without
    them, or ends at once where there are none.
    """
    S = S // VEC * VEC
    images = tl.load(counted)
    if AGAIN:
        if images == B:
            return
    else:
        images = images * 0 + B
    c = tl.program_id(0)
    t = tl.arange(0, T)
    b = t // BS
    s = t % BS
    inside = (b < B) & (s < S)
    where = (b * C + c) * S + s
    v = tl.load(x + where, mask=inside, other=0.0).to(tl.float32)
    counts = inside
    if AGAIN:
        good = tl.load(finite + b, mask=b < B, other=0) != 0
        counts = inside & good
    else:
        odd = (inside & ((v - v) != 0.0)).to(tl.int32)
        if tl.max(odd, 0) != 0:
            _mark(odd, finite, counted, b, B)
    n = images * S
    k = (n - 1) // 2
    m = _search(v, counts, n, k, k) + 0.0
    d = tl.where(counts, v - m, 0.0)
    total = tl.sum(d.to(tl.float64), 0)
    variance = (tl.sum(d * d, 0).to(tl.float64) / tl.maximum(n, 1).to(tl.float64)).to(tl.float32)
    order = tl.where(counts & (v == m), b * S + s, NOWHERE)
    m = tl.where(n > 0, m, float("nan"))
    variance = tl.where(n > 0, variance, float("nan"))
    used, r = _mixed(m, variance, n, held_centre, held_variance, c, C, share, eps, HELD)
    tl.store(centre_out + c, m)
    tl.store(variance_out + c, variance)
    tl.store(deviation_out + c, total)
    tl.store(index_out + c, tl.min(order, 0))
    tl.store(used_out + c, used)
    tl.store(scale_out + c, r)
    if WEIGHT:
        r *= tl.load(weight + c).to(tl.float32)
    out = (v - used) * r
    if BIAS:
        out += tl.load(bias + c).to(tl.float32)
    if AGAIN:
        out = tl.where(good, out, float("nan"))
    tl.store(y + where, out.to(y.dtype.element_ty), mask=inside)


# --- a channel in memory ----------------------------------------------------------------------------------------------


@triton.jit
def _bracket(
    x, about, cuts, tallies, finite, counted, B, C, S, low_a, low_b, high_a, high_b,
    AWAY: tl.constexpr, M: tl.constexpr, BB: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Two values of a jittered sample that very probably enclose the median: any whose ranks are in these windows.

    Whatever the next kernels count in starts here too.
    """
    c = tl.program_id(0)
    if not AWAY:
        if c == 0:
            i = tl.arange(0, BB)
            tl.store(finite + i, 1, mask=i < B)
            tl.store(counted, B)
    j = tl.arange(0, M)
    # A fixed hash jitters the positions, so that no period of the data can hide from the sample.
    h = j.to(tl.uint32) * 2654435761
    h = (h ^ (h >> 15)) * 2246822519
    h = (h ^ (h >> 13)) >> 16
    position = (((j.to(tl.int64) << 16) + h.to(tl.int64)) * (B * S) // (M * 65536)).to(tl.int32)
    b = position // S
    s = position - b * S
    base = b.to(tl.int64) * (C * S)
    v = tl.load(x + (base + s * C + c if LAST else base + c * S + s)).to(tl.float32)
    if AWAY:
        v = tl.abs(v - tl.load(about + c))
    v = tl.where(v == v, v, float("inf"))
    n = c * 0 + M
    low = _search(v, v == v, n, n * 0 + low_a, n * 0 + low_b)
    high = _search(v, v == v, n, n * 0 + high_a, n * 0 + high_b)
    tl.store(cuts + c, low + 0.0)
    tl.store(cuts + C + c, high + 0.0)
    for i in tl.static_range(4):
        tl.store(tallies + i * C + c, 0)


@triton.jit
def _pivot(low, high):
    """A finite value near the median, to sum moments about."""
    low = tl.where(tl.abs(low) < float("inf"), low, 0.0)
    high = tl.where(tl.abs(high) < float("inf"), high, 0.0)
    return 0.5 * low + 0.5 * high


@triton.jit(do_not_specialize=["one"])
def _survey(
    x, about, cuts, scratch, collected, tallies, first, second, finite, counted, B, C, S, cap, limit, one,
    AWAY: tl.constexpr, ROOM: tl.constexpr, T: tl.constexpr, BS: tl.constexpr, CB: tl.constexpr,
    LAST: tl.constexpr, VEC: tl.constexpr, FAR: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Read everything once: moments, how much is below the cuts, and keep what is not outside of them.

    Every lane counts for itself and keeps what it finds in ``scratch``, for lanes to meet at the end, when everything
    kept goes to its channel's place. Of more than ``limit`` values, those that equal a cut only count: the attacker's
    grey images are ties. A lane that has no room left makes its program read once more, more slowly.
    """
    S = S // VEC * VEC
    c = _channels(CB, LAST)
    there = c < C
    part = tl.program_id(1)
    parts = tl.num_programs(1)
    low = tl.load(cuts + c, mask=there, other=0.0)
    high = tl.load(cuts + C + c, mask=there, other=0.0)
    p = _pivot(low, high)
    m = low * 0.0
    if AWAY:
        m = tl.load(about + c, mask=there, other=0.0)
    b, s, lanes = _lanes(c, parts, C, S, T, BS, LAST, FAR)
    # ``one`` is 1, and hides that neighbours are loaded: Triton would load four at a time, and then move every tile
    # through shared memory to store what is kept, one at a time.
    lanes *= one
    t = tl.arange(0, T)
    lane_count = T * CB if LAST else T
    own = (t * CB)[:, None] + tl.arange(0, CB)[None, :] if LAST else t
    own *= one
    region = scratch + (part.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)) * (lane_count * ROOM)
    at = own
    sums = (own * 0).to(tl.float32)
    squares = sums
    below = own * 0
    step = parts * (T // BS)
    turns = tl.cdiv(B - part, step) * tl.cdiv(S, BS)
    b0 = part
    s0 = 0
    inside = _inside(b + b0, s + s0, c, B, C, S, LAST)
    v = tl.load(x + lanes + _start(b0, s0, C, S, LAST, FAR), mask=inside, other=float("inf"))  # above every cut
    for _ in range(0, turns):
        s0 += BS
        b0 += tl.where(s0 < S, 0, step)
        s0 = tl.where(s0 < S, s0, 0)
        inside_next = _inside(b + b0, s + s0, c, B, C, S, LAST)
        start = _start(b0, s0, C, S, LAST, FAR)
        v_next = tl.load(x + lanes + start, mask=inside_next, other=float("inf"))  # on its way while v is counted
        w = v.to(tl.float32)
        if AWAY:
            w = tl.abs(w - _wide(m, LAST))
        else:
            d = tl.where(inside, w - _wide(p, LAST), 0.0)
            sums += d
            squares += d * d
        below += (w < _wide(low, LAST)).to(tl.int32)
        between = (w >= _wide(low, LAST)) & (w <= _wide(high, LAST))
        tl.store(region + at, w, mask=between & (at < lane_count * ROOM))
        at += tl.where(between, lane_count, 0)
        v = v_next
        inside = inside_next
    # Here w is float32 again, and not v, which has the type of x: Triton lets no loop change it.
    kept = at // lane_count
    most = tl.max(tl.max(kept, 1), 0) if LAST else tl.max(kept, 0)
    tl.atomic_add(tallies + c, tl.sum(below, 0), mask=there, sem="relaxed")
    target = collected + c.to(tl.int64) * cap
    total = tl.sum(kept, 0)
    if most <= ROOM:
        tl.debug_barrier()
        strict = kept
        low_tie = low * float("nan")  # which nothing equals
        high_tie = high * float("nan")
        much = (tl.max(total, 0) if LAST else total) > limit
        if much:  # ties: what equals a cut only counts
            at_low = own * 0
            at_high = own * 0
            for k in range(0, most):
                w = tl.load(region + k * lane_count + own, mask=k < kept, other=float("nan"))
                at_low += (w == _wide(low, LAST)).to(tl.int32)
                at_high += ((w == _wide(high, LAST)) & (w != _wide(low, LAST))).to(tl.int32)
            tl.atomic_add(tallies + C + c, tl.sum(at_low, 0), mask=there, sem="relaxed")
            tl.atomic_add(tallies + 2 * C + c, tl.sum(at_high, 0), mask=there, sem="relaxed")
            strict = kept - at_low - at_high
            low_tie = low
            high_tie = high
        start = tl.atomic_add(tallies + 3 * C + c, tl.sum(strict, 0), mask=there, sem="relaxed")
        slot = _wide(start, LAST) + tl.cumsum(strict, 0) - strict
        for k in range(0, most):
            w = tl.load(region + k * lane_count + own, mask=k < kept, other=float("nan"))
            has = (k < kept) & (w != _wide(low_tie, LAST)) & (w != _wide(high_tie, LAST))
            tl.store(_wide(target, LAST) + slot, w, mask=has & (slot < cap))
            slot += has.to(tl.int32)
    else:
        at_low = own * 0
        at_high = own * 0
        amount = own * 0
        for b0 in range(part, B, parts * (T // BS)):
            for s0 in range(0, S, BS):
                inside = _inside(b + b0, s + s0, c, B, C, S, LAST)
                where = lanes + _start(b0, s0, C, S, LAST, FAR)
                w = tl.load(x + where, mask=inside, other=float("inf")).to(tl.float32)
                if AWAY:
                    w = tl.abs(w - _wide(m, LAST))
                at_low += (w == _wide(low, LAST)).to(tl.int32)
                at_high += ((w == _wide(high, LAST)) & (w != _wide(low, LAST))).to(tl.int32)
                amount += ((w > _wide(low, LAST)) & (w < _wide(high, LAST))).to(tl.int32)
        tl.atomic_add(tallies + C + c, tl.sum(at_low, 0), mask=there, sem="relaxed")
        tl.atomic_add(tallies + 2 * C + c, tl.sum(at_high, 0), mask=there, sem="relaxed")
        start = tl.atomic_add(tallies + 3 * C + c, tl.sum(amount, 0), mask=there, sem="relaxed")
        some = tl.max(tl.max(amount, 1), 0) if LAST else tl.max(amount, 0)
        if some > 0:
            for b0 in range(part, B, parts * (T // BS)):
                for s0 in range(0, S, BS):
                    inside = _inside(b + b0, s + s0, c, B, C, S, LAST)
                    where = lanes + _start(b0, s0, C, S, LAST, FAR)
                    w = tl.load(x + where, mask=inside, other=float("inf")).to(tl.float32)
                    if AWAY:
                        w = tl.abs(w - _wide(m, LAST))
                    between = ((w > _wide(low, LAST)) & (w < _wide(high, LAST))).to(tl.int32)
                    slot = _wide(start, LAST) + tl.cumsum(between, 0) - between
                    tl.store(_wide(target, LAST) + slot, w, mask=(between != 0) & (slot < cap))
                    start += tl.sum(between, 0)
    if not AWAY:
        tl.store(first + part * C + c, tl.sum(sums.to(tl.float64), 0), mask=there)
        tl.store(second + part * C + c, tl.sum(squares.to(tl.float64), 0), mask=there)
        strange = _by_place(sums - sums != 0.0, LAST)
        if tl.max(strange, 0) != 0:  # some image may not be finite: see which
            for b0 in range(part, B, parts * (T // BS)):
                for s0 in range(0, S, BS):
                    inside = _inside(b + b0, s + s0, c, B, C, S, LAST)
                    w = tl.load(x + lanes + _start(b0, s0, C, S, LAST, FAR), mask=inside, other=0.0).to(tl.float32)
                    odd = _by_place(inside & (w - w != 0.0), LAST)
                    if tl.max(odd, 0) != 0:
                        _mark(odd, finite, counted, (b + b0) // SPLIT, B // SPLIT)


@triton.jit
def _look_everywhere(
    x, finite, m, p, c, B, C, S, AWAY: tl.constexpr, T: tl.constexpr, BS: tl.constexpr, LAST: tl.constexpr
):  # fmt: skip
    """How much of a channel, where it counts, is at most ``p``, the greatest of that, the least of the rest."""
    t = tl.arange(0, T)
    count = t * 0
    last = count.to(tl.float32) - float("inf")
    next_one = count.to(tl.float32) + float("inf")
    for b0 in range(0, B, T // BS):
        for s0 in range(0, S, BS):
            v, counts = _channel(x, finite, b0 + t // BS, s0 + t % BS, c, B, C, S, LAST)
            if AWAY:
                v = tl.abs(v - m)
            below = counts & (v <= p)
            count += below.to(tl.int32)
            last = tl.maximum(last, tl.where(below, v, float("-inf")))
            next_one = tl.minimum(next_one, tl.where(counts & (v > p), v, float("inf")))
    return tl.sum(count, 0), tl.max(last, 0), tl.min(next_one, 0)


@triton.jit
def _channel(x, finite, b, s, c, B, C, S, LAST: tl.constexpr):
    """Values of one channel, and which of them count."""
    counts = (s < S) & (tl.load(finite + b, mask=b < B, other=0) != 0)
    base = b.to(tl.int64) * (C * S)
    where = base + s * C + c if LAST else base + s + c * S
    return tl.load(x + where, mask=counts, other=0.0).to(tl.float32), counts


@triton.jit
def _finish(
    x, about, cuts, collected, tallies, first, second, finite, counted, held_centre, held_variance,
    centre_out, variance_out, deviation_out, index_out, used_out, scale_out,
    B, C, S, cap, parts, eps, share, factor,
    AWAY: tl.constexpr, HELD: tl.constexpr, PARTS: tl.constexpr, FIT: tl.constexpr, CHUNK: tl.constexpr,
    T: tl.constexpr, BS: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """The median, from what was collected or, where the bracket missed it or an image is not finite, from everything.

    No host waits for that decision. With ``AWAY`` it is the median of deviations, which goes where their sum else does,
    and the variance is ``factor`` times its square.
    """
    c = tl.program_id(0)
    below = tl.load(tallies + c)
    at_low = tl.load(tallies + C + c)
    at_high = tl.load(tallies + 2 * C + c)
    between = tl.load(tallies + 3 * C + c)
    good = tl.load(counted)
    n = good * S
    k = (n - 1) // 2
    low_cut = tl.load(cuts + c)
    high_cut = tl.load(cuts + C + c)
    centre = tl.load(about + c) if AWAY else 0.0
    rank = k - below - at_low
    known = (good == B) & (between <= cap) & (k >= below)
    found = low_cut
    done = known & (rank < 0)
    source = collected + c.to(tl.int64) * cap
    zero = k * 0
    if known & (rank >= 0) & (rank < between):
        done = rank >= 0
        j = tl.arange(0, CHUNK)
        if FIT:
            v = tl.load(source + j, mask=j < between, other=float("inf"))
            found = _search(v, j < between, between, rank, rank)
        else:
            low, high, under, upto = low_cut, high_cut, zero, between
            todo = rank >= 0
            slow = rank < 0
            rounds = 0
            while todo & (rounds < ROUNDS):
                p = _aim(low, high, under.to(tl.float32), upto.to(tl.float32), rank.to(tl.float32), slow)
                counts = j * 0
                lasts = counts.to(tl.float32) - float("inf")
                nexts = counts.to(tl.float32) + float("inf")
                for j0 in range(0, between, CHUNK):
                    v = tl.load(source + j0 + j, mask=j0 + j < between, other=float("inf"))
                    counts += (v <= p).to(tl.int32)
                    lasts = tl.maximum(lasts, tl.where(v <= p, v, float("-inf")))
                    nexts = tl.minimum(nexts, tl.where(v > p, v, float("inf")))
                low, high, under, upto, slow, found, todo = _narrow(
                    low, high, under, upto, slow, found, todo, rank, rank,
                    tl.sum(counts, 0), tl.max(lasts, 0), tl.min(nexts, 0),
                )  # fmt: skip
                rounds += 1
    if known & (rank >= between) & (rank < between + at_high):
        found = high_cut
        done = rank >= 0
    if (done == 0) & (n > 0):
        low, high, under, upto = zero.to(tl.float32) - HUGE, zero.to(tl.float32) + HUGE, zero, n
        todo = n > 0
        slow = n > 0
        rounds = 0
        while todo & (rounds < ROUNDS):
            p = _aim(low, high, under.to(tl.float32), upto.to(tl.float32), k.to(tl.float32), slow)
            count, last, next_one = _look_everywhere(x, finite, centre, p, c, B, C, S, AWAY, T, BS, LAST)
            low, high, under, upto, slow, found, todo = _narrow(
                low, high, under, upto, slow, found, todo, k, k, count, last, next_one
            )
            rounds += 1
    m = found + 0.0
    if AWAY:
        variance = factor * (m * m)
        tl.store(deviation_out + c, m)
    else:
        i = tl.arange(0, PARTS)
        total = tl.sum(tl.load(first + i * C + c, mask=i < parts, other=0.0), 0)
        square = tl.sum(tl.load(second + i * C + c, mask=i < parts, other=0.0), 0)
        values = n.to(tl.float64)
        if good == B:
            e = m.to(tl.float64) - _pivot(low_cut, high_cut).to(tl.float64)
            square = square - 2.0 * e * total + values * e * e
            total = total - values * e
        else:
            t = tl.arange(0, T)
            sums = t.to(tl.float64) * 0.0
            squares = t.to(tl.float64) * 0.0
            for b0 in range(0, B, T // BS):
                for s0 in range(0, S, BS):
                    v, counts = _channel(x, finite, b0 + t // BS, s0 + t % BS, c, B, C, S, LAST)
                    d = tl.where(counts, v - m, 0.0)
                    sums += d.to(tl.float64)
                    squares += (d * d).to(tl.float64)
            total = tl.sum(sums, 0)
            square = tl.sum(squares, 0)
        variance = (tl.maximum(square, 0.0) / tl.maximum(values, 1.0)).to(tl.float32)
        tl.store(deviation_out + c, total)
        centre = tl.where(n > 0, m, float("nan"))
        tl.store(centre_out + c, centre)
    variance = tl.where(n > 0, variance, float("nan"))
    used, r = _mixed(centre, variance, n, held_centre, held_variance, c, C, share, eps, HELD)
    tl.store(variance_out + c, variance)
    tl.store(index_out + c, NOWHERE)
    tl.store(used_out + c, used)
    tl.store(scale_out + c, r)
