"""Kernels, in C here and in Triton on a GPU, compared with the reference functions in float64."""

from __future__ import annotations

import pytest
import torch

import medbn
from medbn import kernels
from medbn._normalise import normalise_batch
from medbn.kernels import c, triton

from .cases import assert_captured_without_synchronisation, needs_c, on_each_kernel

CASES = [
    ((8, 5, 7, 7), "random"),
    ((33, 16, 4, 4), "random"),
    ((33, 16, 4, 4), "relu"),
    ((5, 3), "random"),
    ((6, 4, 9), "huge"),
    ((1, 2, 3, 3), "random"),
    ((4, 3, 2, 3, 2), "relu"),
    ((40, 17, 5, 5), "random"),
    ((40, 17, 5, 5), "huge"),
]


def make(shape, values="random", device="cpu"):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    if values == "relu":
        x = x.relu()
    if values == "huge":
        x[: max(1, shape[0] // 5)] *= 1e6
    return x.to(device)


def compute_twice(x, kernel, batch_weight=1.0, running=None, backward=None, weight=True):
    """Return what is selected, its output and gradients, and those of the reference functions in float64."""
    channels = x.shape[1]
    g = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x.device)
    w, b = (torch.randn(channels, generator=torch.Generator().manual_seed(s)).to(x.device) for s in (2, 3))
    results = []
    for dtype in (x.dtype, torch.float64):
        parameters = [t.to(dtype).requires_grad_() for t in ((w, b) if weight else ())]
        leaf = x.detach().clone().to(dtype).requires_grad_()
        layer = medbn.RobustBatchNorm(channels, affine=False, estimator=kernel, device=x.device, dtype=dtype)
        if weight:
            layer.weight, layer.bias = (torch.nn.Parameter(p) for p in parameters)
        if running is not None:
            layer.running_mean, layer.running_var = (s.to(x.device, dtype) for s in running)
            layer.policy = medbn.policies.interpolate(prior=1 - batch_weight)
        layer.eval()
        selected = kernels.selected(leaf, kernel)
        if backward is None:
            y = layer(leaf)
        else:
            with medbn.backward_through(layer, backward):
                y = layer(leaf)
        inputs = [leaf, *(layer.parameters() if weight else ())]
        results.append((selected, y, *torch.autograd.grad(y, inputs, g.to(dtype))))
    (path, *fast), (other, *exact) = results
    assert other == "reference"
    return path, fast, exact


def assert_agree(fast, exact):
    for one, two in zip(fast, exact, strict=True):
        scale = max(1.0, two.abs().max().item())
        torch.testing.assert_close(one.double(), two, rtol=2e-4, atol=2e-4 * scale)


@on_each_kernel
@pytest.mark.parametrize(("shape", "values"), CASES, ids=str)
def test_values_and_gradients_are_those_of_the_reference(device, kernel, shape, values):
    path, fast, exact = compute_twice(make(shape, values, device), kernel)
    assert path == ("c" if device == "cpu" else "triton")
    if values == "relu" and kernel != "image_median":  # ties: the gradient may go to another of the equal elements
        fast, exact = fast[:1], exact[:1]
    assert_agree(fast, exact)


@on_each_kernel
def test_mixtures_with_running_statistics(device, kernel):
    x = make((12, 6, 5, 5), device=device)
    running = torch.randn(6), torch.rand(6) + 0.5
    _, fast, exact = compute_twice(x, kernel, batch_weight=0.3, running=running)
    assert_agree(fast, exact)


@on_each_kernel
def test_the_gradient_of_the_mean(device, kernel):
    _, fast, exact = compute_twice(make((12, 6, 5, 5), device=device), kernel, backward="mean")
    assert_agree(fast, exact)


@on_each_kernel
def test_channels_last_and_no_affine_parameters(device, kernel):
    x = make((12, 6, 5, 5), device=device).to(memory_format=torch.channels_last)
    _, fast, exact = compute_twice(x, kernel, weight=False)
    assert_agree(fast, exact)
    assert fast[0].is_contiguous(memory_format=torch.channels_last)


@on_each_kernel
def test_images_that_are_not_finite_are_isolated(device, kernel):
    x = make((10, 4, 6, 6), device=device)
    x[3, 2, 1, 1] = float("nan")
    x[7, 0, 0, 0] = float("inf")
    finite = torch.tensor([i not in (3, 7) for i in range(10)], device=device)
    leaf = x.clone().requires_grad_()
    y = medbn.functional.robust_norm(leaf, estimator=kernel)
    expected = medbn.functional.robust_norm(x[finite].double(), estimator=kernel)
    torch.testing.assert_close(y[finite].double(), expected, rtol=1e-4, atol=1e-5)
    assert y[~finite].isnan().all()
    y[finite].square().sum().backward()
    assert (leaf.grad[~finite] == 0).all()
    assert leaf.grad[finite].isfinite().all()


@pytest.mark.parametrize("device", [pytest.param("cpu", marks=needs_c), pytest.param("cuda", marks=pytest.mark.gpu)])
def test_selected_values_are_exact(device):
    x = make((64, 3, 20, 20), device=device)
    layer = medbn.MedBatchNorm2d(3).to(device)
    fast = normalise_batch(x, None, None, layer.estimator, 1e-5).batch_centre
    rows = x.transpose(0, 1).reshape(3, -1)
    assert torch.equal(fast, rows.median(dim=1).values)


@needs_c
def test_second_derivatives_use_the_reference_functions():
    x = make((6, 3, 4, 4)).requires_grad_()
    for kernel in triton.KERNELS:
        (first,) = torch.autograd.grad(
            medbn.functional.robust_norm(x, estimator=kernel).pow(3).sum(), x, create_graph=True
        )
        (second,) = torch.autograd.grad(first.square().sum(), x)
        wide = x.detach().double().requires_grad_()
        (slope,) = torch.autograd.grad(
            medbn.functional.robust_norm(wide, estimator=kernel).pow(3).sum(), wide, create_graph=True
        )
        (expected,) = torch.autograd.grad(slope.square().sum(), wide)
        torch.testing.assert_close(second.double(), expected, rtol=1e-3, atol=1e-2 * expected.abs().max().item())


@needs_c
def test_one_activation_is_saved_for_backward():
    x = make((64, 32, 16, 16)).requires_grad_()
    saved = 0

    def count(tensor):
        nonlocal saved
        saved += tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        medbn.functional.robust_norm(x, torch.ones(32), torch.zeros(32))
    assert saved < 1.1 * x.numel()


@needs_c
def test_training_updates_running_statistics_as_the_reference_does(monkeypatch):
    x = make((20, 5, 6, 6))
    states = []
    for forced in ("auto", "reference"):
        monkeypatch.setenv("MEDBN_KERNELS", forced)
        layer = medbn.MedBatchNorm2d(5).train()
        layer(x)
        layer(2 * x + 1)
        states.append(layer.state_dict())
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], rtol=1e-5, atol=1e-6)


@needs_c
def test_selected_and_how_to_force_it(monkeypatch):
    x = torch.randn(4, 3, 5, 5)
    assert kernels.selected(x) == "c"
    assert kernels.selected(x, "mean") == "reference"
    assert kernels.selected(x.double()) == "reference"
    assert kernels.selected(x.half()) == "reference"
    monkeypatch.setenv("MEDBN_KERNELS", "reference")
    assert kernels.selected(x) == "reference"
    monkeypatch.setenv("MEDBN_KERNELS", "c")
    assert kernels.selected(x) == "c"
    with pytest.raises(RuntimeError, match=r"MEDBN_KERNELS=c.*float64"):
        kernels.selected(x.double())
    monkeypatch.setenv("MEDBN_KERNELS", "cuda")
    with pytest.raises(ValueError, match=r"cuda.*auto, c, reference, triton"):
        kernels.selected(x)


def test_everything_runs_without_the_c_library(monkeypatch):
    monkeypatch.setattr(c, "available", lambda: False)
    x = torch.randn(4, 3, 5, 5)
    assert kernels.selected(x) == "reference"
    assert medbn.functional.robust_norm(x).shape == x.shape
    monkeypatch.setenv("MEDBN_KERNELS", "c")
    with pytest.raises(RuntimeError, match="MEDBN_KERNELS=c"):
        kernels.selected(x)


def test_users_estimators_are_called(monkeypatch):
    monkeypatch.setattr(medbn.estimators._registry, "_values", dict(medbn.estimators._registry._values))
    medbn.estimators.register("median", replace=True)(lambda x, valid: (x.amax((0, 2, 3)), x.var((0, 2, 3))))
    x = torch.randn(4, 3, 5, 5)
    expected = (x - x.amax((0, 2, 3)).view(1, 3, 1, 1)) / (x.var((0, 2, 3)).view(1, 3, 1, 1) + 1e-5).sqrt()
    torch.testing.assert_close(medbn.functional.robust_norm(x, estimator="median"), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", triton.KERNELS)
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((200, 64, 32, 32), torch.float32),
        ((200, 512, 4, 4), torch.float32),
        ((16, 8, 112, 112), torch.float32),
        ((200, 33, 14, 14), torch.bfloat16),
        ((200, 64, 32, 32), torch.float16),
    ],
    ids=str,
)
def test_real_sizes_on_a_gpu(kernel, shape, dtype):
    x = make(shape, "random", device="cuda").to(dtype)
    assert kernels.selected(x, kernel) == "triton"
    y = medbn.functional.robust_norm(x, estimator=kernel)
    assert torch.equal(y, medbn.functional.robust_norm(x, estimator=kernel))
    expected = medbn.functional.robust_norm(x.double(), estimator=kernel)
    close = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}[dtype]
    torch.testing.assert_close(y.double(), expected, rtol=close, atol=close)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("kernel", triton.KERNELS)
def test_a_cuda_graph_can_be_captured_without_synchronisation(kernel):
    x = make((200, 64, 16, 16), device="cuda").requires_grad_()
    g = torch.randn_like(x)

    def step():
        return torch.autograd.grad(medbn.functional.robust_norm(x, estimator=kernel), x, g)[0]

    assert_captured_without_synchronisation(step)
