"""A Triton kernel of nine arguments that does little, to time its launch."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit
def nine(a: Any, b: Any, c: Any, d: Any, size: Any, e: Any, f: Any, g: Any, h: Any, width: tl.constexpr) -> None:
    """Write ``(a + b + c) · h + e + f + g`` to ``d``."""
    i = tl.arange(0, width)
    inside = i < size
    total = tl.load(a + i, mask=inside) + tl.load(b + i, mask=inside) + tl.load(c + i, mask=inside)
    tl.store(d + i, total * h + e + f + g, mask=inside)
