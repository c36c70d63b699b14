"""Triton: the exact median of each channel, or of its deviations |x − about| for the MAD, from what a survey collected.

One program per channel. Where the cuts enclose the median and every image is finite, the median is a cut, or among the
values that ``survey`` collected. Where not, the program searches the whole channel, which is slow, rare and exact. The
program decides that for itself, so that the host never waits for the GPU.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .normalise import mix
from .search import ROUNDS, narrow, next_cut, select_rank
from .survey import midpoint
from .tiles import NO_POSITION

HUGE = tl.constexpr(3.4028234663852886e38)
"""The largest float32."""


@triton.jit
def load_from_channel(x, finite, b, s, c, B, C, S, LAST: tl.constexpr):
    """Return values of one channel, and the mask of those that count: the ones in finite images."""
    counts = (s < S) & (tl.load(finite + b, mask=b < B, other=0) != 0)
    base = b.to(tl.int64) * (C * S)
    where = base + s * C + c if LAST else base + s + c * S
    return tl.load(x + where, mask=counts, other=0.0).to(tl.float32), counts


@triton.jit
def cut_channel(
    x, finite, about, p, c, B, C, S, MAD: tl.constexpr, TILE: tl.constexpr, ROW: tl.constexpr, LAST: tl.constexpr
):  # fmt: skip
    """Return how many values of a channel are at most ``p``, the greatest of those, and the least of the others."""
    t = tl.arange(0, TILE)
    count = t * 0
    last = count.to(tl.float32) - float("inf")
    following = count.to(tl.float32) + float("inf")
    for b0 in range(0, B, TILE // ROW):
        for s0 in range(0, S, ROW):
            v, counts = load_from_channel(x, finite, b0 + t // ROW, s0 + t % ROW, c, B, C, S, LAST)
            if MAD:
                v = tl.abs(v - about)
            below = counts & (v <= p)
            count += below.to(tl.int32)
            last = tl.maximum(last, tl.where(below, v, float("-inf")))
            following = tl.minimum(following, tl.where(counts & (v > p), v, float("inf")))
    return tl.sum(count, 0), tl.max(last, 0), tl.min(following, 0)


@triton.jit
def sum_channel(
    x, finite, m, c, B, C, S, TILE: tl.constexpr, ROW: tl.constexpr, LAST: tl.constexpr
):  # fmt: skip
    """Return the sums of x − m and of (x − m)² over the values of a channel that count."""
    t = tl.arange(0, TILE)
    sums = t.to(tl.float64) * 0.0
    squares = t.to(tl.float64) * 0.0
    for b0 in range(0, B, TILE // ROW):
        for s0 in range(0, S, ROW):
            v, counts = load_from_channel(x, finite, b0 + t // ROW, s0 + t % ROW, c, B, C, S, LAST)
            d = tl.where(counts, v - m, 0.0)
            sums += d.to(tl.float64)
            squares += (d * d).to(tl.float64)
    return tl.sum(sums, 0), tl.sum(squares, 0)


@triton.jit
def finish(
    x, about, cuts, collected, tallies, sums, squares, finite, finite_count, running_centre, running_variance,
    centre_out, variance_out, sum_out, selected_out, used_out, scale_out,
    B, C, S, capacity, parts, eps, batch_weight, factor,
    MAD: tl.constexpr, RUNNING: tl.constexpr, PARTS: tl.constexpr, FITS: tl.constexpr, CHUNK: tl.constexpr,
    TILE: tl.constexpr, ROW: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Write the median, the variance about it, and what ``mix`` makes of the two.

    ``sum_out`` gets the sum of x − median. With ``MAD`` the median is that of |x − about|: it goes to ``sum_out``, and
    the variance is ``factor`` times its square. ``FITS`` says that the collected values fit into registers.
    """
    c = tl.program_id(0)
    below = tl.load(tallies + c)
    at_low = tl.load(tallies + C + c)
    at_high = tl.load(tallies + 2 * C + c)
    between = tl.load(tallies + 3 * C + c)
    images = tl.load(finite_count)
    n = images * S
    k = (n - 1) // 2
    low_cut = tl.load(cuts + c)
    high_cut = tl.load(cuts + C + c)
    centre = tl.load(about + c) if MAD else 0.0
    rank = k - below - at_low
    enclosed = (images == B) & (between <= capacity) & (k >= below)
    result = low_cut
    done = enclosed & (rank < 0)
    source = collected + c.to(tl.int64) * capacity
    zero = k * 0
    if enclosed & (rank >= 0) & (rank < between):
        done = rank >= 0
        j = tl.arange(0, CHUNK)
        if FITS:
            v = tl.load(source + j, mask=j < between, other=float("inf"))
            result = select_rank(v, j < between, between, rank, rank)
        else:
            low, high, under, upto = low_cut, high_cut, zero, between
            searching = rank >= 0
            slow = rank < 0
            rounds = 0
            while searching & (rounds < ROUNDS):
                p = next_cut(low, high, under.to(tl.float32), upto.to(tl.float32), rank.to(tl.float32), slow)
                counts = j * 0
                lasts = counts.to(tl.float32) - float("inf")
                nexts = counts.to(tl.float32) + float("inf")
                for j0 in range(0, between, CHUNK):
                    v = tl.load(source + j0 + j, mask=j0 + j < between, other=float("inf"))
                    counts += (v <= p).to(tl.int32)
                    lasts = tl.maximum(lasts, tl.where(v <= p, v, float("-inf")))
                    nexts = tl.minimum(nexts, tl.where(v > p, v, float("inf")))
                low, high, under, upto, slow, result, searching = narrow(
                    low, high, under, upto, slow, result, searching, rank, rank,
                    tl.sum(counts, 0), tl.max(lasts, 0), tl.min(nexts, 0),
                )  # fmt: skip
                rounds += 1
    if enclosed & (rank >= between) & (rank < between + at_high):
        result = high_cut
        done = rank >= 0
    if (done == 0) & (n > 0):
        low, high, under, upto = zero.to(tl.float32) - HUGE, zero.to(tl.float32) + HUGE, zero, n
        searching = n > 0
        slow = n > 0
        rounds = 0
        while searching & (rounds < ROUNDS):
            p = next_cut(low, high, under.to(tl.float32), upto.to(tl.float32), k.to(tl.float32), slow)
            count, last, following = cut_channel(x, finite, centre, p, c, B, C, S, MAD, TILE, ROW, LAST)
            low, high, under, upto, slow, result, searching = narrow(
                low, high, under, upto, slow, result, searching, k, k, count, last, following
            )
            rounds += 1
    m = result + 0.0
    if MAD:
        variance = factor * (m * m)
        tl.store(sum_out + c, m)
    else:
        i = tl.arange(0, PARTS)
        total = tl.sum(tl.load(sums + i * C + c, mask=i < parts, other=0.0), 0)
        square = tl.sum(tl.load(squares + i * C + c, mask=i < parts, other=0.0), 0)
        values = n.to(tl.float64)
        if images == B:  # the survey's moments about the midpoint of the cuts, moved to the median
            e = m.to(tl.float64) - midpoint(low_cut, high_cut).to(tl.float64)
            square = square - 2.0 * e * total + values * e * e
            total = total - values * e
        else:
            total, square = sum_channel(x, finite, m, c, B, C, S, TILE, ROW, LAST)
        variance = (tl.maximum(square, 0.0) / tl.maximum(values, 1.0)).to(tl.float32)
        tl.store(sum_out + c, total)
        centre = tl.where(n > 0, m, float("nan"))
        tl.store(centre_out + c, centre)
    variance = tl.where(n > 0, variance, float("nan"))
    used, r = mix(centre, variance, n, running_centre, running_variance, c, C, batch_weight, eps, RUNNING)
    tl.store(variance_out + c, variance)
    tl.store(selected_out + c, NO_POSITION)
    tl.store(used_out + c, used)
    tl.store(scale_out + c, r)
