"""Triton functions that address a tile of an activation; every pass over an activation uses them.

An activation is dense ``(B, C, S)``, contiguous or, with ``LAST``, channels last. A program reads it tile by tile. A
tile is ``TILE`` places of one channel or, with ``LAST``, of ``WIDTH`` neighbouring channels: then per-channel values
are vectors of ``WIDTH``, otherwise scalars. Place t of a tile is position ``s0 + t % ROW`` of image
``b0 + step · (t // ROW)``. Programs that share a channel take every ``step``-th image, so that images next to each
other in a batch (an attacker's, for example) go to different programs.

Compile-time constants: ``VEC`` divides S, which Triton cannot infer, so that as many values are loaded at once;
``INT64`` says that offsets need 64 bits; ``SPLIT`` (with ``LAST`` only) is the number of pieces that each image is cut
into, and B and S then count pieces and positions in a piece.

``finite`` is 1 for each image that is finite, ``finite_count`` their number. Results are the same in every run: sums
are made of parts in a fixed order, and concurrent writes are minima or counters of whole sets.
"""

from __future__ import annotations

import triton
import triton.language as tl

NO_POSITION = tl.constexpr(2147483647)
"""The position of a value that has not been found; above every position."""


@triton.jit
def program_channels(WIDTH: tl.constexpr, LAST: tl.constexpr):
    """Return the program's channels: a vector of neighbours, or one number."""
    if LAST:
        return tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    else:
        return tl.program_id(0)


@triton.jit
def by_channel(values, LAST: tl.constexpr):
    """Shape per-channel values to broadcast against a tile."""
    if LAST:
        return values[None, :]
    else:
        return values


@triton.jit
def by_place(values, LAST: tl.constexpr):
    """Shape per-place values to broadcast against a tile."""
    if LAST:
        return values[:, None]
    else:
        return values


@triton.jit
def any_channel(flags, LAST: tl.constexpr):
    """Return, for each place of a tile, whether the flag of any channel is set."""
    if LAST:
        return tl.max(flags.to(tl.int32), 1)
    else:
        return flags.to(tl.int32)


@triton.jit
def tile_offsets(c, step, C, S, TILE: tl.constexpr, ROW: tl.constexpr, LAST: tl.constexpr, INT64: tl.constexpr):
    """Return each place's image and position, and each value's offset in memory, relative to the tile's start."""
    t = tl.arange(0, TILE)
    b = t // ROW * step
    s = t % ROW
    image = C * S
    if INT64:
        image = image.to(tl.int64)
    if LAST:
        return b, s, (b * image + s * C)[:, None] + c[None, :]
    else:
        return b, s, b * image + s + c * S


@triton.jit
def tile_start(b0, s0, C, S, LAST: tl.constexpr, INT64: tl.constexpr):
    """Return the offset in memory of the tile that starts at image b0, position s0."""
    if INT64:
        b0 = b0.to(tl.int64)
    if LAST:
        return (b0 * S + s0) * C
    else:
        return b0 * C * S + s0


@triton.jit
def in_bounds(b, s, c, B, C, S, LAST: tl.constexpr):
    """Return the mask of a tile's values that exist."""
    if LAST:
        return ((b < B) & (s < S))[:, None] & (c < C)[None, :]
    else:
        return (b < B) & (s < S)


@triton.jit
def load_finite(finite, b, B, SPLIT: tl.constexpr, LAST: tl.constexpr):
    """Return the mask of a tile's places that are in finite images."""
    return by_place(tl.load(finite + b // SPLIT, mask=b < B, other=0) != 0, LAST)


@triton.jit
def mark_nonfinite(flags, finite, finite_count, b, B):
    """Clear ``finite`` for the images whose flag is set, and subtract those from ``finite_count``, each once."""
    was = tl.atomic_xchg(finite + b, b * 0, mask=(flags != 0) & (b < B))
    cleared = tl.sum(tl.where((flags != 0) & (b < B) & (was != 0), 1, 0), 0)
    if cleared != 0:
        tl.atomic_add(finite_count, -cleared)


@triton.jit
def first_position(
    first, b, s, part, parts, S, TILE: tl.constexpr, ROW: tl.constexpr, LAST: tl.constexpr
):  # fmt: skip
    """Return the least position, in (b, s) order, where ``first`` is the turn at which each lane met the value."""
    turns = tl.cdiv(S, ROW)
    at = part + first // turns * (parts * (TILE // ROW)) + by_place(b, LAST)
    order = at * S + first % turns * ROW + by_place(s, LAST)
    return tl.min(tl.where(first < NO_POSITION, order, NO_POSITION), 0)


@triton.jit
def find_lane(position, b, s, part, parts, S, TILE: tl.constexpr, ROW: tl.constexpr, LAST: tl.constexpr):
    """Return which lane of the program's tiles holds a position, and the image and position where that tile starts."""
    image = position // S
    place = position - image * S
    own = (by_place(b, LAST) + part) % (parts * (TILE // ROW)) == by_channel(image % (parts * (TILE // ROW)), LAST)
    own = own & (by_place(s, LAST) == by_channel(place % ROW, LAST))
    return own, image // (parts * (TILE // ROW)) * (parts * (TILE // ROW)) + part, place // ROW * ROW
