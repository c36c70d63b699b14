"""Run the Triton kernels on the CPU, through Triton's interpreter, against the reference path in float64."""

from __future__ import annotations

from dataclasses import fields
from itertools import pairwise

import torch

import medbn
from medbn.kernels import MAD_FACTORS, reference, smooth, triton
from medbn.kernels.saved import Spec, shapes
from medbn.kernels.triton import plans, tiling

LAST, CONTIGUOUS = torch.channels_last, torch.contiguous_format


def check_selected(x, finite, value, position, about=None):
    """Check that the median of x, or of |x − about|, is exact, and that ``position`` is where it first occurs."""
    rows = x.transpose(0, 1).reshape(x.shape[1], -1)
    rows = rows if about is None else (rows - about[:, None]).abs()
    counts = finite.repeat_interleave(x[0, 0].numel())[None]
    assert torch.equal(value, rows[:, counts[0]].median(1).values + 0.0)
    equal = (rows == value[:, None]) & counts
    assert torch.equal(position.long(), equal.to(torch.uint8).argmax(1))


def check(x, name, batch_weight=1.0, backward="own", affine=True, temperature=0.4) -> None:
    """Check the forward and the backward pass, for finite images and others."""
    channels = x.shape[1]
    running = None if batch_weight == 1.0 else (torch.randn(channels), torch.rand(channels) + 0.1)
    weight, bias = (torch.randn(channels), torch.randn(channels)) if affine else (None, None)
    spec = Spec(name, batch_weight, 1e-5, backward, temperature)
    y, saved = triton.forward(x, weight, bias, running, spec)
    finite = x.flatten(1).isfinite().all(1)
    assert torch.equal(saved.finite.bool(), finite)
    assert saved.finite_count.item() == finite.sum()
    assert y.stride() == x.stride()
    assert y[~finite].isnan().all()
    g = torch.randn(x.shape)
    dx, d_weight, d_bias = (smooth.gpu_backward if backward == "smooth" else triton.backward)(g, x, weight, saved, spec)
    assert dx.stride() == x.stride()
    assert (dx[~finite] == 0).all()
    if not finite.any():
        assert torch.stack([saved.centre, saved.variance]).isnan().all()
        assert torch.equal(saved.used_centre, running[0]) if running else saved.used_centre.isnan().all()
        return
    wide = x[finite].double().requires_grad_()
    parameters = [t.double().requires_grad_() for t in (weight, bias) if t is not None]
    estimator = medbn.estimators.get(name)
    centre, variance = (medbn.gradients.smooth(estimator, temperature) if backward == "smooth" else estimator)(wide)
    if name != "image_median":
        check_selected(x, finite, saved.centre, saved.selected if name == "median" else saved.selected[0])
        total = (wide - centre.view(-1, *[1] * (x.dim() - 2))).transpose(0, 1).flatten(1).sum(1)
        torch.testing.assert_close(saved.deviation_sum, total, rtol=1e-4, atol=1e-4)
    if name in MAD_FACTORS:
        check_selected(x, finite, saved.slopes[0], saved.selected[1], saved.centre)
    torch.testing.assert_close(saved.variance.double(), variance, rtol=1e-4, atol=1e-6)
    if backward == "mean":
        values = [s.detach() for s in (centre, variance)]
        slopes = medbn.functional.statistics(wide, "mean")
        centre, variance = (medbn.kernels.substitute(v, s) for v, s in zip(values, slopes, strict=True))
    if running is not None:
        centre, variance = reference.mix((centre, variance), [r.double() for r in running], batch_weight)
    expected = medbn.functional.normalise(wide, centre, variance, *(parameters or (None, None)))
    torch.testing.assert_close(y[finite].double(), expected, rtol=1e-4, atol=1e-5)
    gradients = torch.autograd.grad(expected, [wide, *parameters], g[finite].double())
    largest = gradients[0].abs().max().item() if backward == "smooth" else 1.0
    torch.testing.assert_close(dx[finite].double(), gradients[0], rtol=1e-3, atol=1e-5 * max(1.0, largest))
    if affine:
        affine_gradients = torch.stack([d_weight, d_bias]).double()
        torch.testing.assert_close(affine_gradients, torch.stack(gradients[1:]), rtol=1e-3, atol=1e-4)


def check_memory(name) -> None:
    """Check what the operators rely on, the promised shapes; that tensors are made once; and that none overlap."""
    for shape in ((4, 2), (64, 3, 5, 5)):
        x = torch.randn(shape)
        y, saved = triton.forward(x, None, None, None, Spec(name, 1.0, 1e-5))
        sizes = [() if t is None else tuple(t.shape) for t in (saved.selected, saved.image_means, saved.slopes)]
        assert sizes == [() if size == (0,) else size for size in shapes(name, *shape[:2])]
        assert saved.selected.dtype == torch.int32
        assert saved.deviation_sum.dtype == torch.float64
        assert saved.centre is saved.centre
        parts = [getattr(saved, field.name) for field in fields(saved)]
        ends = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in (y, *parts) if t is not None)
        assert all(end <= start for (_, end), (start, _) in pairwise(ends))
        changed = saved.replace(selected=torch.zeros(1))
        assert changed.centre is saved.centre
        assert changed.selected.numel() == 1
        assert saved.buffer.nbytes < 8 * (7 + 2 * shape[0]) * shape[1] + 4 * shape[0] + 8 * 128  # nothing else is kept
        assert torch.equal(triton.statistics(x, name)[0], saved.centre)


def check_types(name) -> None:
    """Check bfloat16 inputs, strides that are neither contiguous nor channels last, and huge values."""
    x, g = torch.randn(2, 4, 3, 2, 5).bfloat16()
    halves, exact = [], []
    for values, gradients, results in ((x, g, halves), (x.float(), g.float(), exact)):
        spec = Spec(name, 1.0, 1e-5, "smooth", 0.4)
        y, saved = triton.forward(values, None, None, None, spec)
        results += [y, triton.backward(gradients, values, None, saved, spec)[0]]
        results += [smooth.gpu_backward(gradients, values, None, saved, spec)[0]]
    assert all(t.dtype == torch.bfloat16 for t in halves)
    torch.testing.assert_close([t.float() for t in halves], exact, rtol=2e-2, atol=2e-2)
    x = torch.randn(4, 5, 2, 3).permute(0, 2, 3, 1)
    check(x, name)
    x = torch.randn(7, 2, 3)
    x[::2] = 1e30
    _, saved = triton.forward(x, None, None, None, spec)
    assert smooth.gpu_backward(torch.randn(7, 2, 3), x, None, saved, spec)[0].isfinite().all()


def grey(layout) -> torch.Tensor:
    """Return values most of which are the same in each lane, and equal a cut: more than a lane has room for."""
    size = 20
    half = torch.rand(size * size * 2 // 5) * 0.9
    x = torch.cat([half, -half, torch.zeros(size * size // 10), torch.ones(size * size * 11 // 10)])
    x[-size * size * 11 // 20 :] *= -1.0
    x = x[torch.randperm(x.numel())].view(2, 1, size, size)
    # A second channel makes the layouts differ.
    return torch.cat([x, torch.randn(2, 1, size, size)], 1).contiguous(memory_format=layout)


def make(shape, kind, layout=CONTIGUOUS) -> torch.Tensor:
    x = torch.randn(shape)
    if kind == "relu":
        x = x.relu()
    if kind == "constant":
        x = torch.full(shape, -0.0)
    if kind == "huge":
        x[0] *= 1e10
    if kind == "nan":
        x[1] = x[2]  # values that occur first in an image that does not count
        x[1].view(-1)[0] = float("nan")
    if kind == "all_nan":
        x[:] = float("nan")
    return x.contiguous(memory_format=layout) if x.dim() == 4 else x


def cut(**thresholds) -> None:
    for name, value in thresholds.items():
        assert hasattr(tiling, name)
        setattr(tiling, name, value)
    tiling.plan.cache_clear()
    tiling.survey_plan.cache_clear()
    plans.clear()


def main() -> None:
    torch.manual_seed(0)
    # Channels in registers; gradients of whole channels where there are at least four.
    for layout in (CONTIGUOUS, LAST):
        check(make((5, 4, 4, 4), "random", layout), "median")
        check(make((9, 2, 5, 5), "relu", layout), "median", 0.3, affine=False)
        check(make((5, 4, 3, 3), "nan", layout), "median", 0.3, "mean")
        check(make((5, 2, 3, 3), "nan", layout), "image_median")
        check(make((6, 3, 4, 4), "huge", layout), "image_median", 0.3, affine=False)
        for name in ("median", "image_median"):
            for batch_weight in (1.0, 0.3):
                check(make((2, 2, 3, 3), "all_nan", layout), name, batch_weight)
    for shape in ((6, 4), (1, 3), (1, 2, 3, 3), (3, 1, 1, 1)):
        check(make(shape, "random"), "median")
        check(make(shape, "random"), "image_median", 0.3)
    check(make((3, 2, 2, 2), "constant"), "median")
    check(make((9, 2, 3, 3), "random"), "image_median", backward="mean")
    for name in ("median", "mad", "image_median"):
        check_memory(name)
        check_types(name)
        check(make((5, 3, 3, 4), "nan", LAST), name, 0.3, "smooth")
    for name in ("median", "mad_scaled", "image_median"):
        check(make((6, 3), "random"), name, backward="smooth")
    # Channels in many parts: small tiles, and buffers too small for what is collected.
    cut(SMALL_CHANNEL=4, LESS_SMALL_CHANNEL=4, TILE=64, SURVEY_TILE=32, PARTS_PER_PROGRAM=2)
    cut(COLLECTED_IN_REGISTERS=8, SPARE=0)
    for layout in (CONTIGUOUS, LAST):
        check(make((5, 3, 4, 4), "random", layout), "median", 0.3)
        check(make((9, 2, 5, 5), "nan", layout), "median", backward="mean", affine=False)
        check(make((9, 2, 5, 5), "random", layout), "mad_scaled")
        check(make((5, 2, 4, 4), "relu", layout), "mad", 0.3)
        check(make((3, 2, 8, 8), "nan", layout), "mad", affine=False)
        check(make((9, 2, 5, 5), "nan", layout), "image_median", 0.3)
        check(make((3, 2, 8, 8), "random", layout), "image_median", backward="mean")
    check(make((3, 1, 9, 9), "random"), "image_median")
    check(make((2, 2, 3, 3), "all_nan", LAST), "median", 0.3)
    check(make((2, 2, 3, 3), "all_nan"), "mad")
    check(make((3, 2, 4, 4), "constant"), "median")
    check(make((4, 2, 6), "huge"), "median")
    for shape in ((6, 4), (1, 3), (3, 1, 1, 1)):
        check(make(shape, "random"), "mad")
    # One program for many tiles, which collects more than it has room for.
    cut(TILE=2048, WAVES=0, SURVEY_WAVES=0)
    for layout in (CONTIGUOUS, LAST):
        check(grey(layout).abs(), "median")
        check(grey(layout), "mad")
    print("all agree")


if __name__ == "__main__":
    main()
