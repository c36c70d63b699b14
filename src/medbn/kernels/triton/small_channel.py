"""Triton: the median and the normalisation of a channel that one program holds in registers, in one read and write."""

from __future__ import annotations

import triton
import triton.language as tl

from .normalise import activate, mix
from .search import select_rank
from .tiles import NO_POSITION, mark_nonfinite


@triton.jit
def normalise_small_channels(
    x, y, residual, weight, bias, running_centre, running_variance,
    centre_out, variance_out, deviation_sum_out, selected_out, used_out, scale_out, finite, finite_count,
    B, C, S, eps, batch_weight,
    RUNNING: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr, RETRY: tl.constexpr, ADD: tl.constexpr,
    RELU: tl.constexpr,
    TILE: tl.constexpr, ROW: tl.constexpr, VEC: tl.constexpr,
):  # fmt: skip
    """Select the median of a channel, take the moments about it, mix and normalise; with ``RELU``, activate.

    The first launch takes all images for finite, and marks those that are not. With ``RETRY``, the second one repeats
    everything without them, or ends at once where there are none. So the host need not know.
    """
    S = S // VEC * VEC
    images = tl.load(finite_count)
    if RETRY:
        if images == B:
            return
    else:
        images = images * 0 + B
    c = tl.program_id(0)
    t = tl.arange(0, TILE)
    b = t // ROW
    s = t % ROW
    inside = (b < B) & (s < S)
    where = (b * C + c) * S + s
    v = tl.load(x + where, mask=inside, other=0.0).to(tl.float32)
    counts = inside
    if RETRY:
        valid = tl.load(finite + b, mask=b < B, other=0) != 0
        counts = inside & valid
    else:
        nonfinite = (inside & ((v - v) != 0.0)).to(tl.int32)
        if tl.max(nonfinite, 0) != 0:
            mark_nonfinite(nonfinite, finite, finite_count, b, B)
    n = images * S
    k = (n - 1) // 2
    m = select_rank(v, counts, n, k, k) + 0.0
    d = tl.where(counts, v - m, 0.0)
    total = tl.sum(d.to(tl.float64), 0)
    variance = (tl.sum(d * d, 0).to(tl.float64) / tl.maximum(n, 1).to(tl.float64)).to(tl.float32)
    order = tl.where(counts & (v == m), b * S + s, NO_POSITION)
    m = tl.where(n > 0, m, float("nan"))
    variance = tl.where(n > 0, variance, float("nan"))
    used, r = mix(m, variance, n, running_centre, running_variance, c, C, batch_weight, eps, RUNNING)
    tl.store(centre_out + c, m)
    tl.store(variance_out + c, variance)
    tl.store(deviation_sum_out + c, total)
    tl.store(selected_out + c, tl.min(order, 0))
    tl.store(used_out + c, used)
    tl.store(scale_out + c, r)
    if WEIGHT:
        r *= tl.load(weight + c).to(tl.float32)
    out = (v - used) * r
    if BIAS:
        out += tl.load(bias + c).to(tl.float32)
    out = activate(out, residual, where, inside, ADD, RELU)
    if RETRY:
        out = tl.where(valid, out, float("nan"))
    tl.store(y + where, out.to(y.dtype.element_ty), mask=inside)
