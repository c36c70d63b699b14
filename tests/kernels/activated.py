"""Run the Triton kernels with a ReLU and a residual on the CPU, through the interpreter, beside those without."""

from __future__ import annotations

from itertools import product

import torch

from medbn.kernels import triton
from medbn.kernels.dispatch import activated_backward
from medbn.kernels.saved import Activation, Spec

from .interpreted import CONTIGUOUS, LAST, cut, make


def bits(t: torch.Tensor) -> torch.Tensor:
    return t.nan_to_num(7e7)


def check(x, name, adds, batch_weight=1.0, backward="own", affine=True) -> None:
    """Check that an activated pass has the bits of the plain one with torch's addition and ReLU, both ways."""
    channels = x.shape[1]
    running = None if batch_weight == 1.0 else (torch.randn(channels), torch.rand(channels) + 0.1)
    weight, bias = (torch.randn(channels), torch.randn(channels)) if affine else (None, None)
    residual = torch.randn(x.shape).to(x.dtype) if adds else None  # contiguous, whatever x is
    spec = Spec(name, batch_weight, 1e-5, backward, 0.4)
    plain, saved = triton.forward(x, weight, bias, running, spec)
    expected = plain if residual is None else plain + residual
    expected = expected.relu()
    y, saved_too = triton.forward(x, weight, bias, running, spec, Activation(residual))
    exact = x.dtype == torch.float32
    close = {"rtol": 0.0, "atol": 0.0} if exact else {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(y, expected, equal_nan=True, **close)
    assert y.stride() == x.stride()
    assert torch.equal(bits(saved_too.used_centre), bits(saved.used_centre))
    assert torch.equal(saved_too.selected, saved.selected)
    g = torch.randn(x.shape).to(x.dtype)
    masked = torch.ops.aten.threshold_backward(g, y, 0)
    *results, d_residual = activated_backward(g, y, x, weight, saved, spec, adds)
    plain_backward = triton.backward
    if backward == "smooth":
        from medbn.kernels.smooth import gpu_backward as plain_backward
    for found, value in zip(results, plain_backward(masked, x, weight, saved, spec), strict=True):
        assert torch.equal(bits(found), bits(value))
        assert found.stride() == value.stride()
    assert (d_residual is None) == (not adds)
    if d_residual is not None:
        assert torch.equal(d_residual, masked)  # also in images that are not finite, as torch's ReLU does


def main() -> None:
    import medbn.kernels.smooth as smooth

    smooth.backward = smooth.gpu_backward  # what dispatch calls for an input on a GPU
    torch.manual_seed(0)
    for adds in (True, False):  # in registers; gradients of whole channels
        check(make((3, 4, 3, 3), "nan"), "median", adds, 0.3)
        check(make((3, 2, 2, 3), "nan", LAST), "image_median", adds)
    check(make((5, 4, 2, 3), "random", LAST), "median", True, affine=False)
    check(make((2, 2, 3, 3), "all_nan"), "median", False, 0.3)
    check(make((6, 4), "random"), "median", False, backward="mean")
    check(make((5, 3, 2, 2), "nan", LAST), "median", True, 0.3, "smooth")
    check(torch.randn(3, 2, 2, 3).permute(0, 2, 3, 1), "image_median", True)  # neither contiguous nor channels last
    for name in ("median", "image_median"):
        check(torch.randn(4, 3, 2, 3).bfloat16(), name, True)
    # Channels in many parts.
    cut(SMALL_CHANNEL=4, LESS_SMALL_CHANNEL=4, TILE=16, SURVEY_TILE=32, PARTS_PER_PROGRAM=2)
    for layout, adds in product((CONTIGUOUS, LAST), (True, False)):
        check(make((5, 2, 3, 3), "nan", layout), "median", adds, 0.3)
        check(make((5, 2, 3, 3), "random", layout), "image_median", adds)
    check(make((5, 2, 3, 3), "nan"), "mad_scaled", True)
    print("all agree")


if __name__ == "__main__":
    main()
