"""Smooth gradients of kernels, compared with the reference functions and with autograd in float64."""

from __future__ import annotations

import pytest
import torch

import medbn
from medbn import kernels
from medbn._normalise import normalise_batch
from medbn.kernels import c, smooth, triton

from .cases import assert_captured_without_synchronisation, needs_c, on_each_kernel

each_kernel = pytest.mark.parametrize("kernel", triton.KERNELS)
CASES = [  # shape, temperature
    ((8, 5, 7, 7), 0.05),
    ((8, 5, 7, 7), 3.0),
    ((33, 16, 4, 4), 0.5),
    ((5, 3), 0.5),
    ((6, 4, 9), 0.05),
    ((1, 2, 3, 3), 3.0),
    ((4, 3, 2, 3, 2), 0.5),
    ((4, 1, 1, 1), 0.5),
    ((40, 17, 5, 5), 0.5),
]


def make(shape, device="cpu", seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def compute_gradients(x, kernel, batch_weight=1.0, running=None, affine=True, temperature=0.5):
    """Return the output of a layer and its smooth gradients."""
    channels = x.shape[1]
    layer = medbn.RobustBatchNorm(channels, affine=affine, estimator=kernel, device=x.device, dtype=x.dtype).eval()
    if affine:
        layer.weight, layer.bias = (torch.nn.Parameter(make(channels, x.device, s).to(x.dtype)) for s in (2, 3))
    if running is not None:
        layer.running_mean, layer.running_var = (s.to(x.device, x.dtype) for s in running)
        layer.policy = medbn.policies.interpolate(prior=1 - batch_weight)
    leaf = x.detach().clone().requires_grad_()
    with medbn.backward_through(layer, medbn.gradients.get("smooth", temperature)):
        y = layer(leaf)
    g = make(x.shape, x.device, 1).to(x.dtype)
    return [y.detach(), *torch.autograd.grad(y, [leaf, *layer.parameters()], g)]


@pytest.fixture
def compare(monkeypatch):
    """Return a kernel's output and gradients, after comparing them with the reference functions."""

    def run(x, kernel, *, wide=True, **options):
        calls = []
        monkeypatch.setattr(smooth, "backward", lambda *a, real=smooth.backward: calls.append(1) or real(*a))
        fast = compute_gradients(x, kernel, **options)
        assert calls
        monkeypatch.undo()
        monkeypatch.setenv("MEDBN_KERNELS", "reference")
        for other in (x, x.double()) if wide else (x,):
            for one, two in zip(fast, compute_gradients(other, kernel, **options), strict=True):
                scale = max(1.0, two.nan_to_num().abs().max().item())
                torch.testing.assert_close(one.double(), two.double(), rtol=1e-3, atol=1e-5 * scale, equal_nan=True)
        monkeypatch.undo()
        return fast

    return run


@on_each_kernel
@pytest.mark.parametrize(("shape", "temperature"), CASES, ids=str)
def test_gradients_are_those_of_the_formula(device, kernel, shape, temperature, compare):
    compare(make(shape, device), kernel, temperature=temperature)


@on_each_kernel
@pytest.mark.parametrize(("last", "affine"), [(False, False), (True, True)])
def test_memory_formats_and_mixtures(device, kernel, last, affine, compare):
    layout = torch.channels_last if last else torch.contiguous_format
    x = make((12, 6, 5, 5), device).contiguous(memory_format=layout)
    running = make((6,), seed=4), make((6,), seed=5).abs() + 0.5
    _, dx, *_ = compare(x, kernel, batch_weight=0.3, running=running, affine=affine)
    assert dx.stride() == x.stride()


@on_each_kernel
@pytest.mark.parametrize(("finite", "mixed"), [(8, True), (1, False), (0, True), (0, False)])
def test_images_that_are_not_finite_are_isolated(device, kernel, finite, mixed, compare):
    x = make((10, 4, 6, 6), device)
    x[finite:, 2, 1, 1] = float("nan")
    x[9, 0, 0, 0] = float("inf")
    running = (make((4,), seed=4), make((4,), seed=5).abs() + 0.5) if mixed else None
    y, dx, *_ = compare(x, kernel, batch_weight=0.3 if mixed else 1.0, running=running)
    assert y[finite:].isnan().all()
    assert (dx[finite:] == 0).all()
    assert dx.isfinite().all()
    assert bool(dx[:finite].any()) == (finite > 0)


@on_each_kernel
def test_huge_values_make_no_nan(device, kernel, compare):
    """Compared in float32 only: in float64 their squares are finite, which gives another gradient."""
    x = make((9, 3, 5, 4), device)
    x[1, :, ::2] = 1e30
    assert compare(x, kernel, wide=False)[1].isfinite().all()


@on_each_kernel
def test_ties(device, kernel, compare):
    compare(make((8, 3, 6, 6), device).relu(), kernel)
    _, dx, *_ = compare(torch.zeros(4, 3, 5, 5, device=device), kernel)
    assert dx.isfinite().all()


@pytest.mark.gpu
@each_kernel
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(kernel, dtype):
    x = make((16, 8, 9, 9), "cuda").to(dtype)
    results = [compute_gradients(t, kernel)[:2] for t in (x, x.double())]
    assert results[0][1].dtype == dtype
    close = {torch.float16: 5e-3, torch.bfloat16: 3e-2}[dtype]
    torch.testing.assert_close(results[0][1].double(), results[1][1], rtol=close, atol=close)


@needs_c
def test_kernels_compute_their_own_smooth_gradient_only(monkeypatch):
    x = make((6, 3, 4, 4))
    median, images, mean = (medbn.estimators.get(name) for name in ("median", "image_median", "mean"))

    def uses_kernel(estimator, backward):
        used = normalise_batch(x, None, None, estimator, 1e-5, backward=backward).used
        return used is None  # a kernel has mixed the statistics

    assert uses_kernel(median, medbn.gradients.smooth(median))
    assert not uses_kernel(median, medbn.gradients.smooth(images))
    assert not uses_kernel(images, medbn.gradients.smooth(median))
    assert uses_kernel(images, medbn.gradients.smooth(mean))
    monkeypatch.setattr(medbn.estimators._registry, "_values", dict(medbn.estimators._registry._values))
    medbn.estimators.register("image_median", replace=True)(lambda x, valid: (x.mean((0, 2, 3)), x.var((0, 2, 3))))
    own = medbn.estimators.get("image_median")
    assert medbn.gradients.smooth(own).function.kernel == "median"
    assert not uses_kernel(own, medbn.gradients.smooth(own))


@needs_c
def test_second_derivatives():
    for kernel in c.KERNELS:
        saved = []
        for dtype in (torch.float32, torch.float64):
            x = make((6, 3, 4, 4)).to(dtype).requires_grad_()
            layer = medbn.RobustBatchNorm2d(3, estimator=kernel, dtype=dtype).eval()
            with medbn.backward_through(layer, medbn.gradients.get("smooth")):
                (first,) = torch.autograd.grad(layer(x).pow(3).sum(), x, create_graph=True)
            saved.append(torch.autograd.grad(first.square().sum(), x)[0].double())
        torch.testing.assert_close(*saved, rtol=1e-3, atol=1e-3 * saved[1].abs().max().item())


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@each_kernel
def test_a_cuda_graph_can_be_captured_without_synchronisation(kernel):
    x = make((200, 64, 16, 16), "cuda").requires_grad_()
    g = torch.randn_like(x)
    assert kernels.selected(x, kernel) == "triton"
    layer = medbn.RobustBatchNorm2d(64, estimator=kernel, device="cuda").eval()

    def step():
        with medbn.backward_through(layer, medbn.gradients.get("smooth")):
            return torch.autograd.grad(layer(x), x, g)[0]

    assert_captured_without_synchronisation(step)
