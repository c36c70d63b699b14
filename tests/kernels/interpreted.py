"""Runs the Triton kernels on the CPU, through Triton's interpreter, against the reference path in float64."""

from __future__ import annotations

import torch

import medbn
from medbn.kernels import gpu


def check(x, image, share=1.0, held=None, mean=False, affine=True) -> None:
    channels = x.shape[1]
    w, b = (torch.randn(channels), torch.randn(channels)) if affine else (None, None)
    if image:
        y, found, used, scale, kept = gpu.image_forward(x, w, b, held, share, 1e-5)
    else:
        y, found, used, scale = gpu.forward(x, w, b, held, share, 1e-5)
    finite = x.flatten(1).isfinite().all(1)
    assert torch.equal(found.finite.bool(), finite)
    assert found.counted.item() == finite.sum()
    wide = x[finite].double().requires_grad_()
    parameters = [t.double().requires_grad_() for t in (w, b) if t is not None]
    name = "image_median" if image else "median"
    centre, variance = medbn.functional.statistics(wide, name)
    if not image:
        rows = x[finite].transpose(0, 1).reshape(channels, -1)
        assert torch.equal(found.centre, rows.median(1).values + 0.0)
        all_rows = x.transpose(0, 1).reshape(channels, -1)
        equal = (all_rows == found.centre[:, None]) & finite.repeat_interleave(x[0, 0].numel())[None]
        assert torch.equal(found.place.long(), equal.to(torch.uint8).argmax(1))
    torch.testing.assert_close(found.variance.double(), variance, rtol=1e-4, atol=1e-6)
    if mean:
        values = [s.detach() for s in (centre, variance)]
        slopes = medbn.functional.statistics(wide, "mean")
        centre, variance = (medbn.kernels.substitute(v, s) for v, s in zip(values, slopes, strict=True))
    if held is not None:
        centre, variance = (share * s + (1 - share) * h.double() for s, h in zip((centre, variance), held, strict=True))
    expected = medbn.functional.normalise(wide, centre, variance, *(parameters or (None, None)))
    torch.testing.assert_close(y[finite].double(), expected, rtol=1e-4, atol=1e-5)
    assert y[~finite].isnan().all()
    g = torch.randn_like(x)
    slopes = torch.autograd.grad(expected, [wide, *parameters], g[finite].double())
    if image and not mean:
        dx, dw, db = gpu.image_backward(g, x, w, found, used, scale, share, kept)
    else:
        dx, dw, db = gpu.backward(g, x, w, found, used, scale, share, mean)
    torch.testing.assert_close(dx[finite].double(), slopes[0], rtol=1e-3, atol=1e-5)
    assert (dx[~finite] == 0).all()
    if affine:
        torch.testing.assert_close(torch.stack([dw, db]).double(), torch.stack(slopes[1:]), rtol=1e-3, atol=1e-4)


def main() -> None:
    torch.manual_seed(0)
    for small, tile, fine in ((16384, 2048, 128), (4, 64, 32)):  # channels in registers, and in many parts
        gpu.SMALL, gpu.TILE, gpu.FINE = small, tile, fine
        for shape in ((5, 3, 4, 4), (6, 4), (1, 2, 3, 3), (3, 1, 1, 1), (9, 2, 5, 5)):
            for kind in ("random", "relu", "constant", "huge", "nan"):
                x = torch.randn(shape)
                if kind == "relu":
                    x = x.relu()
                if kind == "constant":
                    x = torch.full(shape, -0.0)
                if kind == "huge":
                    x[0] *= 1e10
                if kind == "nan" and shape[0] > 2:
                    x[1].view(-1)[0] = float("nan")
                held = torch.randn(shape[1]), torch.rand(shape[1]) + 0.1
                check(x, image=False)
                check(x, image=False, share=0.3, held=held, mean=kind == "random", affine=False)
                if kind in ("random", "huge", "nan"):
                    check(x, image=True, share=0.3, held=held)
                    check(x, image=True, mean=kind == "random")
    print("all agree")


if __name__ == "__main__":
    main()
