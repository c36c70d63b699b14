"""Triton: bracket the median of each channel with a sample, then read the channel once and collect what is between.

``bracket`` reads a few thousand values of a channel and writes two ``cuts`` that very probably enclose the median.
``survey`` reads everything once, in many programs per channel. It counts the values below the cuts, sums moments about
a value near the median, and collects the few per cent of the values that are between the cuts; ``median.finish`` finds
the median among those. Both serve the MAD too, with |x − about| in the place of x.

``tallies`` are four counters per channel: values below the lower cut, values equal to it, values equal to the upper
cut, and values collected.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .search import select_rank
from .tiles import any_channel, by_channel, in_bounds, mark_nonfinite, program_channels, tile_offsets, tile_start


@triton.jit
def bracket(
    x, about, cuts, tallies, finite, finite_count, B, C, S, low_a, low_b, high_a, high_b,
    MAD: tl.constexpr, M: tl.constexpr, BATCH: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Write two values of a sample of ``M``: any of the ranks ``low_a`` to ``low_b``, and ``high_a`` to ``high_b``.

    Also set the counters of the next kernels to their initial values.
    """
    c = tl.program_id(0)
    if not MAD:
        if c == 0:
            i = tl.arange(0, BATCH)
            tl.store(finite + i, 1, mask=i < B)
            tl.store(finite_count, B)
    j = tl.arange(0, M)
    # One value of each of M equal stretches. A fixed hash says which, so that no period of the data escapes the sample.
    h = j.to(tl.uint32) * 2654435761
    h = (h ^ (h >> 15)) * 2246822519
    h = (h ^ (h >> 13)) >> 16
    position = (((j.to(tl.int64) << 16) + h.to(tl.int64)) * (B * S) // (M * 65536)).to(tl.int32)
    b = position // S
    s = position - b * S
    base = b.to(tl.int64) * (C * S)
    v = tl.load(x + (base + s * C + c if LAST else base + c * S + s)).to(tl.float32)
    if MAD:
        v = tl.abs(v - tl.load(about + c))
    v = tl.where(v == v, v, float("inf"))
    n = c * 0 + M
    low = select_rank(v, v == v, n, n * 0 + low_a, n * 0 + low_b)
    high = select_rank(v, v == v, n, n * 0 + high_a, n * 0 + high_b)
    tl.store(cuts + c, low + 0.0)
    tl.store(cuts + C + c, high + 0.0)
    for i in tl.static_range(4):
        tl.store(tallies + i * C + c, 0)


@triton.jit
def midpoint(low, high):
    """Return a finite value between the cuts, to sum moments about."""
    low = tl.where(tl.abs(low) < float("inf"), low, 0.0)
    high = tl.where(tl.abs(high) < float("inf"), high, 0.0)
    return 0.5 * low + 0.5 * high


@triton.jit(do_not_specialize=["one"])
def survey(
    x, about, cuts, scratch, collected, tallies, sums_out, squares_out, finite, finite_count, B, C, S, capacity, limit,
    one,
    MAD: tl.constexpr, ROOM: tl.constexpr, TILE: tl.constexpr, ROW: tl.constexpr, WIDTH: tl.constexpr,
    LAST: tl.constexpr, VEC: tl.constexpr, INT64: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Read the program's part of its channels: tally it, collect what is between the cuts, sum moments.

    Every lane writes the values between the cuts to its own ``ROOM`` places of ``scratch``; no lanes communicate before
    the end. Where a lane had more such values than room, the program reads its part again, more slowly.
    """
    S = S // VEC * VEC
    c = program_channels(WIDTH, LAST)
    exists = c < C
    part = tl.program_id(1)
    parts = tl.num_programs(1)
    low = tl.load(cuts + c, mask=exists, other=0.0)
    high = tl.load(cuts + C + c, mask=exists, other=0.0)
    p = midpoint(low, high)
    m = low * 0.0
    if MAD:
        m = tl.load(about + c, mask=exists, other=0.0)
    b, s, offsets = tile_offsets(c, parts, C, S, TILE, ROW, LAST, INT64)
    # ``one`` is 1, and hides that neighbours are loaded: Triton would load four at a time, and then move every tile
    # through shared memory to store what is collected, one at a time.
    offsets *= one
    t = tl.arange(0, TILE)
    lane_count = TILE * WIDTH if LAST else TILE
    own = (t * WIDTH)[:, None] + tl.arange(0, WIDTH)[None, :] if LAST else t
    own *= one
    region = scratch + (part.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)) * (lane_count * ROOM)
    at = own
    sums = (own * 0).to(tl.float32)
    squares = sums
    below = own * 0
    step = parts * (TILE // ROW)
    turns = tl.cdiv(B - part, step) * tl.cdiv(S, ROW)
    b0 = part
    s0 = 0
    inside = in_bounds(b + b0, s + s0, c, B, C, S, LAST)
    v = tl.load(x + offsets + tile_start(b0, s0, C, S, LAST, INT64), mask=inside, other=float("inf"))  # above all cuts
    for _ in range(0, turns):
        s0 += ROW
        b0 += tl.where(s0 < S, 0, step)
        s0 = tl.where(s0 < S, s0, 0)
        inside_next = in_bounds(b + b0, s + s0, c, B, C, S, LAST)
        start = tile_start(b0, s0, C, S, LAST, INT64)
        v_next = tl.load(x + offsets + start, mask=inside_next, other=float("inf"))  # on its way while v is counted
        w = v.to(tl.float32)  # not v itself, which has the type of x: Triton lets no loop change a type
        if MAD:
            w = tl.abs(w - by_channel(m, LAST))
        else:
            d = tl.where(inside, w - by_channel(p, LAST), 0.0)
            sums += d
            squares += d * d
        below += (w < by_channel(low, LAST)).to(tl.int32)
        between = (w >= by_channel(low, LAST)) & (w <= by_channel(high, LAST))
        tl.store(region + at, w, mask=between & (at < lane_count * ROOM))
        at += tl.where(between, lane_count, 0)
        v = v_next
        inside = inside_next
    stored = at // lane_count
    most = tl.max(tl.max(stored, 1), 0) if LAST else tl.max(stored, 0)
    tl.atomic_add(tallies + c, tl.sum(below, 0), mask=exists, sem="relaxed")
    target = collected + c.to(tl.int64) * capacity
    total = tl.sum(stored, 0)
    if most <= ROOM:
        tl.debug_barrier()
        collect_from_scratch(
            region, own, stored, most, total, target, tallies, low, high, c, C, lane_count, capacity, limit, LAST
        )
    else:
        collect_again(
            x, target, tallies, low, high, m, own, b, s, offsets, c, part, parts, B, C, S, capacity,
            MAD, TILE, ROW, LAST, INT64,
        )  # fmt: skip
    if not MAD:
        tl.store(sums_out + part * C + c, tl.sum(sums.to(tl.float64), 0), mask=exists)
        tl.store(squares_out + part * C + c, tl.sum(squares.to(tl.float64), 0), mask=exists)
        suspicious = any_channel(sums - sums != 0.0, LAST)
        if tl.max(suspicious, 0) != 0:  # an image is not finite, or a sum overflowed
            mark_program_images(
                x, finite, finite_count, b, s, offsets, c, part, parts, B, C, S, TILE, ROW, LAST, INT64, SPLIT
            )


@triton.jit
def collect_from_scratch(
    region, own, stored, most, total, target, tallies, low, high, c, C, lane_count, capacity, limit,
    LAST: tl.constexpr,
):  # fmt: skip
    """Copy what the lanes stored to the channel's place in ``collected``.

    Of more than ``limit`` values, those equal to a cut are only counted: an attacker's grey images are full of ties,
    and would fill any buffer.
    """
    exists = c < C
    strict = stored
    low_tie = low * float("nan")  # equal to nothing
    high_tie = high * float("nan")
    many = (tl.max(total, 0) if LAST else total) > limit
    if many:
        at_low = own * 0
        at_high = own * 0
        for k in range(0, most):
            w = tl.load(region + k * lane_count + own, mask=k < stored, other=float("nan"))
            at_low += (w == by_channel(low, LAST)).to(tl.int32)
            at_high += ((w == by_channel(high, LAST)) & (w != by_channel(low, LAST))).to(tl.int32)
        tl.atomic_add(tallies + C + c, tl.sum(at_low, 0), mask=exists, sem="relaxed")
        tl.atomic_add(tallies + 2 * C + c, tl.sum(at_high, 0), mask=exists, sem="relaxed")
        strict = stored - at_low - at_high
        low_tie = low
        high_tie = high
    start = tl.atomic_add(tallies + 3 * C + c, tl.sum(strict, 0), mask=exists, sem="relaxed")
    slot = by_channel(start, LAST) + tl.cumsum(strict, 0) - strict
    for k in range(0, most):
        w = tl.load(region + k * lane_count + own, mask=k < stored, other=float("nan"))
        has = (k < stored) & (w != by_channel(low_tie, LAST)) & (w != by_channel(high_tie, LAST))
        tl.store(by_channel(target, LAST) + slot, w, mask=has & (slot < capacity))
        slot += has.to(tl.int32)


@triton.jit
def collect_again(
    x, target, tallies, low, high, m, own, b, s, offsets, c, part, parts, B, C, S, capacity,
    MAD: tl.constexpr, TILE: tl.constexpr, ROW: tl.constexpr, LAST: tl.constexpr, INT64: tl.constexpr,
):  # fmt: skip
    """Read the program's part again: count ties and what is strictly between the cuts, then copy the latter."""
    exists = c < C
    at_low = own * 0
    at_high = own * 0
    amount = own * 0
    for b0 in range(part, B, parts * (TILE // ROW)):
        for s0 in range(0, S, ROW):
            inside = in_bounds(b + b0, s + s0, c, B, C, S, LAST)
            where = offsets + tile_start(b0, s0, C, S, LAST, INT64)
            w = tl.load(x + where, mask=inside, other=float("inf")).to(tl.float32)
            if MAD:
                w = tl.abs(w - by_channel(m, LAST))
            at_low += (w == by_channel(low, LAST)).to(tl.int32)
            at_high += ((w == by_channel(high, LAST)) & (w != by_channel(low, LAST))).to(tl.int32)
            amount += ((w > by_channel(low, LAST)) & (w < by_channel(high, LAST))).to(tl.int32)
    tl.atomic_add(tallies + C + c, tl.sum(at_low, 0), mask=exists, sem="relaxed")
    tl.atomic_add(tallies + 2 * C + c, tl.sum(at_high, 0), mask=exists, sem="relaxed")
    start = tl.atomic_add(tallies + 3 * C + c, tl.sum(amount, 0), mask=exists, sem="relaxed")
    most = tl.max(tl.max(amount, 1), 0) if LAST else tl.max(amount, 0)
    if most > 0:
        for b0 in range(part, B, parts * (TILE // ROW)):
            for s0 in range(0, S, ROW):
                inside = in_bounds(b + b0, s + s0, c, B, C, S, LAST)
                where = offsets + tile_start(b0, s0, C, S, LAST, INT64)
                w = tl.load(x + where, mask=inside, other=float("inf")).to(tl.float32)
                if MAD:
                    w = tl.abs(w - by_channel(m, LAST))
                between = ((w > by_channel(low, LAST)) & (w < by_channel(high, LAST))).to(tl.int32)
                slot = by_channel(start, LAST) + tl.cumsum(between, 0) - between
                tl.store(by_channel(target, LAST) + slot, w, mask=(between != 0) & (slot < capacity))
                start += tl.sum(between, 0)


@triton.jit
def mark_program_images(
    x, finite, finite_count, b, s, offsets, c, part, parts, B, C, S,
    TILE: tl.constexpr, ROW: tl.constexpr, LAST: tl.constexpr, INT64: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Read the program's part again, and mark the images with a value that is not finite."""
    for b0 in range(part, B, parts * (TILE // ROW)):
        for s0 in range(0, S, ROW):
            inside = in_bounds(b + b0, s + s0, c, B, C, S, LAST)
            w = tl.load(x + offsets + tile_start(b0, s0, C, S, LAST, INT64), mask=inside, other=0.0).to(tl.float32)
            nonfinite = any_channel(inside & (w - w != 0.0), LAST)
            if tl.max(nonfinite, 0) != 0:
                mark_nonfinite(nonfinite, finite, finite_count, (b + b0) // SPLIT, B // SPLIT)
