"""A normalisation with a residual and a ReLU in one kernel, compared with the same in several; on a GPU.

``activated.py`` does this in Triton's interpreter.
"""

from __future__ import annotations

import pytest
import torch

from medbn import kernels
from medbn.kernels import triton
from medbn.kernels.saved import Activation, Spec

SHAPES = [(40, 64, 4, 4), (40, 256, 8, 8), (16, 24, 32, 32), (33, 17)]
CLOSE = {torch.float32: 1e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}
pytestmark = pytest.mark.gpu


def make(shape, seed, dtype, last):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).cuda().to(dtype)
    return x.contiguous(memory_format=torch.channels_last) if last and x.dim() == 4 else x


def check(shape, dtype, last, adds, spec):
    """Check that activated passes are the plain ones with torch's addition and ReLU, for finite images and others."""
    x, g, residual = (make(shape, seed, dtype, last) for seed in range(3))
    x[(1,) + (0,) * (len(shape) - 1)] = torch.nan
    weight, bias = (torch.randn(shape[1], device="cuda") for _ in range(2))
    running = torch.zeros(shape[1], device="cuda"), torch.ones(shape[1], device="cuda")
    given = residual if adds else None
    assert kernels.activates(x, given, spec.kernel)
    plain, saved = kernels.forward(x, weight, bias, running, spec)
    expected = (plain + residual if adds else plain).relu()
    y, own = kernels.activated_forward(x, weight, bias, running, spec, Activation(given))
    torch.testing.assert_close(y, expected, rtol=CLOSE[dtype], atol=CLOSE[dtype], equal_nan=True)
    assert y.stride() == x.stride()
    masked = torch.ops.aten.threshold_backward(g, y, 0)
    *found, d_residual = kernels.activated_backward(g, y, x, weight, own, spec, adds)
    for one, other in zip(found, kernels.backward(masked, x, weight, saved, spec), strict=True):
        close = max(1e-5, CLOSE[dtype])
        torch.testing.assert_close(one, other, rtol=close, atol=close * max(1.0, other.abs().max().item()))
    assert d_residual is None if not adds else torch.equal(d_residual, masked)


@pytest.mark.parametrize("kernel", triton.KERNELS)
@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("adds", [False, True])
def test_the_same_as_operations_of_their_own(kernel, last, adds):
    for shape in SHAPES:
        check(shape, torch.float32, last, adds, Spec(kernel, 0.3, 1e-5))
    check(SHAPES[0], torch.float32, last, adds, Spec(kernel, 1.0, 1e-5, "mean"))
    check(SHAPES[0], torch.float32, last, adds, Spec(kernel, 1.0, 1e-5, "smooth", 0.4))


@pytest.mark.parametrize("kernel", ["median", "image_median"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(kernel, dtype):
    for shape in SHAPES[:3]:
        check(shape, dtype, True, True, Spec(kernel, 1.0, 1e-5))


@pytest.mark.parametrize("kernel", ["median", "image_median"])
def test_the_same_bits_every_time(kernel):
    x, residual = (make((16, 24, 32, 32), seed, torch.float32, True) for seed in range(2))
    spec = Spec(kernel, 1.0, 1e-5)
    first, *others = (kernels.activated_forward(x, None, None, None, spec, Activation(residual))[0] for _ in range(4))
    assert all(torch.equal(first, other) for other in others)
