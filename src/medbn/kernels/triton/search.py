"""Triton: the exact median of the values that a program holds, by cutting their range, and what goes with it.

Values from low to high are left, and of them ranks under to upto − 1; a cut leaves those on one side of it.
"""

from __future__ import annotations

import triton
import triton.language as tl

ROUNDS = tl.constexpr(128)
COARSE = tl.constexpr(16)


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
def _aim(low, high, under, upto, rank, slow):
    """Where to cut next: where the rank would be if values were spread evenly, or the middle of the floats between."""
    first = _key(low)
    even = low + (high - low) * ((rank + 0.5 - under) / (upto - under))
    p = tl.where(slow, _unkey(first + (_key(high) - first) // 2), even)
    p = tl.where(p >= low, p, low)
    return tl.where(p < high, p, low)


@triton.jit
def _narrow(low, high, under, upto, slow, found, todo, k_low, k_high, count, last, next_one):
    """What is left when ``count`` values are at most the cut, ``last`` the greatest of them, ``next_one`` the next."""
    left = upto - under
    hit_last = todo & (count - 1 >= k_low) & (count - 1 <= k_high)
    hit_next = todo & (count >= k_low) & (count <= k_high)
    found = tl.where(hit_last, last, tl.where(hit_next, next_one, found))
    over = count - 1 > k_high
    high = tl.where(todo & over, last, high)
    upto = tl.where(todo & over, count, upto)
    low = tl.where(todo & (over == 0), next_one, low)
    under = tl.where(todo & (over == 0), count, under)
    slow = (slow == 0) & (2 * (upto - under) > left)
    still = todo & (hit_last == 0) & (hit_next == 0)
    found = tl.where(still, low, found)
    return low, high, under, upto, slow, found, still & (low < high)


@triton.jit
def _search(v, counts, n, k_low, k_high):
    """A value whose rank is between these two; the very value where they are the same.

    The first cuts only count. Later ones land on values that are there, so that ties end the search.
    """
    v = tl.where(counts, v, float("inf"))
    low = tl.where(n > 0, tl.min(v, 0), 0.0)
    high = tl.where(n > 0, tl.max(tl.where(counts, v, float("-inf")), 0), 0.0)
    under = n * 0
    upto = n
    slow = n < 0
    rank = 0.5 * (k_low + k_high).to(tl.float32)
    rounds = 0
    more = (low < high) & (upto - under > COARSE)
    while more & (rounds < ROUNDS // 8):
        p = _aim(low, high, under.to(tl.float32), upto.to(tl.float32), rank, slow)
        count = tl.sum((v <= p).to(tl.int32), 0)
        left = upto - under
        over = count > k_high
        high = tl.where(over, p, high)
        upto = tl.where(over, count, upto)
        low = tl.where(over, low, _unkey(_key(p) + 1))
        under = tl.where(over, under, count)
        slow = (slow == 0) & (2 * (upto - under) > left)
        more = (low < high) & (upto - under > COARSE) & ((count < k_low) | (count - 1 > k_high))
        rounds += 1
    found = low
    todo = low < high
    slow = n < 0
    rounds = 0
    while todo & (rounds < ROUNDS):
        p = _aim(low, high, under.to(tl.float32), upto.to(tl.float32), rank, slow)
        below = v <= p
        count = tl.sum(below.to(tl.int32), 0)
        last = tl.max(tl.where(below, v, float("-inf")), 0)
        next_one = tl.min(tl.where(below, float("inf"), v), 0)
        low, high, under, upto, slow, found, todo = _narrow(
            low, high, under, upto, slow, found, todo, k_low, k_high, count, last, next_one
        )
        rounds += 1
    return found


@triton.jit
def _mixed(m, variance, n, held_centre, held_variance, c, C, share, eps, HELD: tl.constexpr):
    """The centre to use and 1/σ: the batch's share with the held one's, or the held ones alone without any image."""
    used, spread = m, variance
    if HELD:
        hc = tl.load(held_centre + c, mask=c < C, other=0.0).to(tl.float32)
        hv = tl.load(held_variance + c, mask=c < C, other=1.0).to(tl.float32)
        mixes = (n > 0) & (share > 0.0)  # nothing times infinity is NaN
        used = tl.where(mixes, share * m + (1.0 - share) * hc, hc)
        spread = tl.where(mixes, share * variance + (1.0 - share) * hv, hv)
    return used, 1.0 / tl.sqrt(spread + eps)


@triton.jit
def _mark(odd, finite, counted, b, B):
    """Note images that are not finite; each is counted by whoever sees it first."""
    was = tl.atomic_xchg(finite + b, b * 0, mask=(odd != 0) & (b < B))
    gone = tl.sum(tl.where((odd != 0) & (b < B) & (was != 0), 1, 0), 0)
    if gone != 0:
        tl.atomic_add(counted, -gone)


@triton.jit
def _by_place(odd, LAST: tl.constexpr):
    """Whether any channel of a tile is, at each place."""
    if LAST:
        return tl.max(odd.to(tl.int32), 1)
    else:
        return odd.to(tl.int32)
