"""Triton functions that find the exact value of a given rank, by cutting the range of the values in two repeatedly.

State of a search: the values from ``low`` to ``high`` remain, and those have the ranks ``under`` to ``upto − 1``. A cut
is a number; counting the values that are at most the cut says on which side of it the rank is. The cut is where the
rank would be if the remaining values were spread evenly or, after such a cut removed less than half of them
(``slow``), the middle of all floats between ``low`` and ``high``. So no values can make a search long.
"""

from __future__ import annotations

import triton
import triton.language as tl

ROUNDS = tl.constexpr(128)
"""More rounds than a search can take: 31 cuts that halve the values that remain, 32 pairs that halve the floats."""
COARSE = tl.constexpr(16)
"""Up to so many remaining values, cuts are moved to values that occur."""


@triton.jit
def float_to_key(x):
    """Return unsigned integers in the same order as the float32 values."""
    bits = x.to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 != 0, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def key_to_float(key):
    """Return the float32 values of these integers: the inverse of ``float_to_key``."""
    bits = tl.where(key >> 31 != 0, key & 0x7FFFFFFF, key ^ 0xFFFFFFFF)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def next_cut(low, high, under, upto, rank, slow):
    """Return the next cut: where the rank is if values are spread evenly, or the middle float if ``slow``."""
    first = float_to_key(low)
    even = low + (high - low) * ((rank + 0.5 - under) / (upto - under))
    p = tl.where(slow, key_to_float(first + (float_to_key(high) - first) // 2), even)
    p = tl.where(p >= low, p, low)
    return tl.where(p < high, p, low)


@triton.jit
def narrow(low, high, under, upto, slow, result, searching, k_low, k_high, count, last, following):
    """Return the state after a cut that ``count`` values are at most.

    ``last`` is the greatest of those, ``following`` the least of the others. The search is over (``searching``) when
    one of the two has a rank from ``k_low`` to ``k_high``; it is the ``result``.
    """
    left = upto - under
    hit_last = searching & (count - 1 >= k_low) & (count - 1 <= k_high)
    hit_following = searching & (count >= k_low) & (count <= k_high)
    result = tl.where(hit_last, last, tl.where(hit_following, following, result))
    over = count - 1 > k_high
    high = tl.where(searching & over, last, high)
    upto = tl.where(searching & over, count, upto)
    low = tl.where(searching & (over == 0), following, low)
    under = tl.where(searching & (over == 0), count, under)
    slow = (slow == 0) & (2 * (upto - under) > left)
    still = searching & (hit_last == 0) & (hit_following == 0)
    result = tl.where(still, low, result)
    return low, high, under, upto, slow, result, still & (low < high)


@triton.jit
def select_rank(v, counts, n, k_low, k_high):
    """Return a value whose rank is from ``k_low`` to ``k_high`` among the ``n`` values that ``counts`` selects.

    The first cuts only count, which is cheap. Later ones move to values that occur, so that ties end the search.
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
        p = next_cut(low, high, under.to(tl.float32), upto.to(tl.float32), rank, slow)
        count = tl.sum((v <= p).to(tl.int32), 0)
        left = upto - under
        over = count > k_high
        high = tl.where(over, p, high)
        upto = tl.where(over, count, upto)
        low = tl.where(over, low, key_to_float(float_to_key(p) + 1))
        under = tl.where(over, under, count)
        slow = (slow == 0) & (2 * (upto - under) > left)
        more = (low < high) & (upto - under > COARSE) & ((count < k_low) | (count - 1 > k_high))
        rounds += 1
    result = low
    searching = low < high
    slow = n < 0
    rounds = 0
    while searching & (rounds < ROUNDS):
        p = next_cut(low, high, under.to(tl.float32), upto.to(tl.float32), rank, slow)
        below = v <= p
        count = tl.sum(below.to(tl.int32), 0)
        last = tl.max(tl.where(below, v, float("-inf")), 0)
        following = tl.min(tl.where(below, float("inf"), v), 0)
        low, high, under, upto, slow, result, searching = narrow(
            low, high, under, upto, slow, result, searching, k_low, k_high, count, last, following
        )
        rounds += 1
    return result
