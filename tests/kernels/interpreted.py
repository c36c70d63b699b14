"""Runs the Triton kernels on the CPU, through Triton's interpreter, against the reference path in float64."""

from __future__ import annotations

from itertools import product

import torch

import medbn
from medbn.kernels import MAD_FACTORS, smooth, triton
from medbn.kernels.saved import Spec, shapes
from medbn.kernels.triton import orchestration


def forward(x, name, w, b, held, share):
    """Output, what was saved, centre and scale used, and what else the backward pass wants."""
    given = (x, w, b, held, share, 1e-5)
    if name == "median":
        return *orchestration.median_forward(*given), ()
    if name == "image_median":
        *saved, kept = orchestration.image_forward(*given)
        return *saved, (kept,)
    *saved, kept = orchestration.mad_forward(*given, MAD_FACTORS[name])
    return *saved, (kept, MAD_FACTORS[name])


def backward(name, given, more, mean=False):
    if mean or name == "median":
        return orchestration.median_backward(*given, mean)
    return (orchestration.image_backward if name == "image_median" else orchestration.mad_backward)(*given, *more)


def selected(x, finite, value, place, about=None):
    """Check that the median of x, or of |x − about|, is exact, and where it stands first."""
    rows = x.transpose(0, 1).reshape(x.shape[1], -1)
    rows = rows if about is None else (rows - about[:, None]).abs()
    counts = finite.repeat_interleave(x[0, 0].numel())[None]
    assert torch.equal(value, rows[:, counts[0]].median(1).values + 0.0)
    equal = (rows == value[:, None]) & counts
    assert torch.equal(place.long(), equal.to(torch.uint8).argmax(1))


def check(x, name, share=1.0, held=None, mean=False, affine=True) -> None:
    channels = x.shape[1]
    w, b = (torch.randn(channels), torch.randn(channels)) if affine else (None, None)
    y, saved, used, scale, more = forward(x, name, w, b, held, share)
    finite = x.flatten(1).isfinite().all(1)
    assert torch.equal(saved.finite.bool(), finite)
    assert saved.finite_count.item() == finite.sum()
    wide = x[finite].double().requires_grad_()
    parameters = [t.double().requires_grad_() for t in (w, b) if t is not None]
    centre, variance = medbn.functional.statistics(wide, name)
    if name != "image_median":
        selected(x, finite, saved.centre, saved.place)
        total = (wide - centre.view(-1, *[1] * (x.dim() - 2))).transpose(0, 1).flatten(1).sum(1)
        torch.testing.assert_close(saved.deviation_sum, total, rtol=1e-4, atol=1e-4)
    if name in MAD_FACTORS:
        mads, places = more[0]
        selected(x, finite, mads[0], places[1], saved.centre)
        assert torch.equal(places[0], saved.place)
    torch.testing.assert_close(saved.variance.double(), variance, rtol=1e-4, atol=1e-6)
    if mean:
        values = [s.detach() for s in (centre, variance)]
        slopes = medbn.functional.statistics(wide, "mean")
        centre, variance = (medbn.kernels.substitute(v, s) for v, s in zip(values, slopes, strict=True))
    if held is not None:
        centre, variance = (share * s + (1 - share) * h.double() for s, h in zip((centre, variance), held, strict=True))
    expected = medbn.functional.normalise(wide, centre, variance, *(parameters or (None, None)))
    torch.testing.assert_close(y[finite].double(), expected, rtol=1e-4, atol=1e-5)
    assert y[~finite].isnan().all()
    assert y.stride() == x.stride()
    g = torch.randn(x.shape)
    slopes = torch.autograd.grad(expected, [wide, *parameters], g[finite].double())
    dx, dw, db = backward(name, (g, x, w, saved, used, scale, share), more, mean)
    assert dx.stride() == x.stride()
    torch.testing.assert_close(dx[finite].double(), slopes[0], rtol=1e-3, atol=1e-5)
    assert (dx[~finite] == 0).all()
    if affine:
        torch.testing.assert_close(torch.stack([dw, db]).double(), torch.stack(slopes[1:]), rtol=1e-3, atol=1e-4)


def check_nothing(name) -> None:
    """Without a finite image there is no output and no gradient, and only what is held is used."""
    known = torch.randn(2), torch.rand(2) + 0.1
    for layout, held in product((torch.contiguous_format, torch.channels_last), (known, None)):
        x = torch.full((2, 2, 3, 3), float("nan")).contiguous(memory_format=layout)
        y, saved, used, scale, more = forward(x, name, None, None, held, 0.3)
        assert y.isnan().all()
        assert torch.stack([saved.centre, saved.variance]).isnan().all()
        assert saved.finite_count.item() == 0
        assert torch.equal(used, held[0]) if held else used.isnan().all()
        dx, *_ = backward(name, (torch.randn(x.shape), x, None, saved, used, scale, 0.3), more)
        assert (dx == 0).all()


def check_whole(name) -> None:
    """What operators are made of: everything by itself in memory, in the shapes that are promised, and gradients."""
    x, g = torch.randn(2, 4, 2)
    spec = Spec(name, 1.0, 1e-5)
    y, saved = triton.forward(x, None, None, None, spec)
    sizes = [() if t is None else tuple(t.shape) for t in (saved.selected, saved.image_means, saved.slopes)]
    assert sizes == [() if shape == (0,) else shape for shape in shapes(name, *x.shape)]
    assert saved.selected.dtype == torch.int32
    assert saved.deviation_sum.dtype == torch.float64
    parts = [y, saved.deviation_sum, saved.selected, saved.slopes, saved.finite, saved.finite_count]
    parts = [t.untyped_storage().data_ptr() for t in parts if t is not None]
    assert len(set(parts)) == len(parts)
    for mean in (False, True):
        wide = x.double().requires_grad_()
        centre, variance = medbn.functional.statistics(wide, name)
        if mean:
            slopes = medbn.functional.statistics(wide, "mean")
            centre, variance = map(medbn.kernels.substitute, (centre, variance), slopes)
        (expected,) = torch.autograd.grad(medbn.functional.normalise(wide, centre, variance), wide, g.double())
        dx, *_ = triton.backward(g, x, None, saved, spec._replace(backward="mean" if mean else "own"))
        torch.testing.assert_close(dx.double(), expected, rtol=1e-3, atol=1e-5)


def check_soft(name) -> None:
    """The gradient of soft medians, by passes in torch over what the kernels leave, against autograd in float64."""
    stand_in = medbn.gradients.smooth(medbn.estimators.get(name), 0.4)
    for shape, kind in (
        ((6, 3, 4, 5), "last"),
        ((6, 3, 4, 5), "nan"),
        ((5, 3), "mixed"),
        ((7, 2, 3), "nan"),
        ((1, 2, 3, 3), "plain"),
        ((1, 2, 3, 3), "nan"),
    ):
        x, g = torch.randn(shape), torch.randn(shape)
        if kind == "last" and x.dim() == 4:
            x = x.to(memory_format=torch.channels_last)
        if kind == "nan":
            x[0].view(-1)[1] = float("nan")
        finite = x.flatten(1).isfinite().all(1)
        held = (torch.randn(shape[1]), torch.rand(shape[1]) + 0.5) if kind == "mixed" else None
        spec = Spec(name, 0.3 if held else 1.0, 1e-5, "smooth", 0.4)
        w = torch.randn(shape[1])
        _, saved = triton.forward(x, w, None, held, spec)
        dx, dw, db = smooth.gpu_backward(g, x, w, saved, spec)
        assert dx.stride() == x.stride()
        assert (dx[~finite] == 0).all()
        if not finite.any():
            continue
        wide, affine = x[finite].double().requires_grad_(), w.double().requires_grad_()
        statistics = stand_in(wide)
        values = [saved.centre.double(), saved.variance.double()]
        torch.testing.assert_close(values, list(statistics), rtol=1e-4, atol=1e-6)
        if held:
            statistics = [0.3 * s + 0.7 * h.double() for s, h in zip(statistics, held, strict=True)]
        expected = medbn.functional.normalise(wide, *statistics, affine)
        slope, d_affine = torch.autograd.grad(expected, [wide, affine], g[finite].double())
        torch.testing.assert_close(dx[finite].double(), slope, rtol=1e-3, atol=1e-5 * max(1.0, slope.abs().max()))
        torch.testing.assert_close(dw.double(), d_affine, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(db.double(), g[finite].double().transpose(0, 1).flatten(1).sum(1))
    x, g = torch.randn(2, 7, 3, 4, 4)
    x[1, :, ::2] = 1e30
    _, saved = triton.forward(x, None, None, None, spec)
    assert smooth.gpu_backward(g, x, None, saved, spec)[0].isfinite().all()
    x = torch.randn(7, 3, 4, 4)
    halves = [t.bfloat16() for t in (x, g)]
    (dx, *_), (exact, *_) = (
        smooth.gpu_backward(b, a, None, triton.forward(a, None, None, None, spec)[1], spec)
        for a, b in (halves, [t.float() for t in halves])
    )
    assert dx.dtype == torch.bfloat16
    torch.testing.assert_close(dx.float(), exact, rtol=2e-2, atol=2e-2)


def check_grey(last: bool) -> None:
    """Where most values of a lane are the same, and equal a cut, it keeps more than it has room for."""
    size = 20
    half = torch.rand(size * size * 2 // 5) * 0.9
    x = torch.cat([half, -half, torch.zeros(size * size // 10), torch.ones(size * size * 11 // 10)])
    x[-size * size * 11 // 20 :] *= -1.0
    x = x[torch.randperm(x.numel())].view(2, 1, size, size)
    layout = torch.channels_last if last else torch.contiguous_format
    # A second channel makes the layouts differ.
    for name, values in (("median", x.abs()), ("mad", x)):
        both = torch.cat([values, torch.randn(2, 1, size, size)], 1)
        check(both.contiguous(memory_format=layout), name)


def main() -> None:
    torch.manual_seed(0)
    for small, tile, fine in ((16384, 2048, 1024), (4, 64, 32)):  # channels in registers, and in many parts
        orchestration.SMALL, orchestration.TILE, orchestration.SURVEY_TILE = small, tile, fine
        orchestration.plan.cache_clear()
        if small == 4:
            orchestration.GATHERED, orchestration.FIT, orchestration.SLACK = 2, 8, 0
        turn = 0
        for shape in ((5, 3, 4, 4), (6, 4), (1, 2, 3, 3), (3, 1, 1, 1), (9, 2, 5, 5), (3, 2, 8, 8), (1, 3)):
            for kind in ("random", "relu", "constant", "huge", "nan"):
                turn += 1
                x = torch.randn(shape)
                if kind == "nan" and shape[0] < 3:
                    continue
                if kind == "relu":
                    x = x.relu()
                if kind == "constant":
                    x = torch.full(shape, -0.0)
                if kind == "huge" and x.numel() > shape[1]:
                    x[0] *= 1e10
                if kind == "nan":
                    x[1] = x[2]  # whose values must be saved there and not here
                    x[1].view(-1)[0] = float("nan")
                held = torch.randn(shape[1]), torch.rand(shape[1]) + 0.1
                if x.dim() == 4 and kind != "constant":
                    x = x.to(memory_format=torch.channels_last) if tile == 64 or kind == "relu" else x
                # What is done with statistics has nothing to do with the values: half of the shapes each.
                mixed = {"share": 0.3, "held": held, "mean": kind == "random", "affine": False}
                one, other = ({}, mixed) if turn % 2 else (mixed, {})
                check(x, "median", **one)
                if kind != "huge" if small == 4 else turn % 2 and kind in ("random", "nan"):
                    check(x, "mad" if kind == "random" else "mad_scaled", **other)
                if kind in ("random", "huge", "nan"):
                    check(x, "image_median", **other)
        for name in ("median", "mad", "image_median"):
            check_nothing(name)
    orchestration.TILE, orchestration.WAVES, orchestration.SURVEY_WAVES = (
        2048,
        0,
        0,
    )  # many turns for each program that surveys
    orchestration.plan.cache_clear()
    check_grey(last=False)
    check_grey(last=True)
    for name in triton.KERNELS:
        check_whole(name)
        check_soft(name)
    print("all agree")


if __name__ == "__main__":
    main()
