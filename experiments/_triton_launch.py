"""A Triton kernel of nine arguments that does little, to time its launch."""

import triton
import triton.language as tl


@triton.jit
def nine(a, b, c, d, size, e, f, g, h, width: tl.constexpr):  # type: ignore[no-untyped-def]  # Triton reads annotations
    """Write ``(a + b + c) · h + e + f + g`` to ``d``."""
    i = tl.arange(0, width)
    inside = i < size
    total = tl.load(a + i, mask=inside) + tl.load(b + i, mask=inside) + tl.load(c + i, mask=inside)
    tl.store(d + i, total * h + e + f + g, mask=inside)
