"""Fused models on the Triton kernels: on a GPU, and in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import medbn
from medbn import kernels, models

FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


@pytest.mark.slow
def test_a_fused_model_on_the_triton_kernels_in_the_interpreter():
    """Run ``interpreted.py`` in a process of its own: Triton decides at its import whether it interprets."""
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-m", "tests.fusion.interpreted"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "all agree" in done.stdout


# --- on a GPU ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def counted(monkeypatch):
    """The fused passes, as a list that grows."""
    calls = []
    forward = kernels.activated_forward

    def count(*arguments):
        calls.append(arguments[0].shape)
        return forward(*arguments)

    monkeypatch.setattr(kernels, "activated_forward", count)
    return calls


def make_pair(name, estimator, layout="contiguous"):
    """Return a fused model, and the same one without."""
    torch.manual_seed(0)
    state, found = None, []
    for fuse in (True, False):
        model = models.get(name, classes=10, channels=3).cuda().to(memory_format=FORMATS[layout]).eval()
        state = state or model.state_dict()
        model.load_state_dict(state)
        found.append(medbn.convert(model, estimator, fuse=fuse))
    return found


@pytest.fixture
def exact_convolutions():
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield


@pytest.mark.gpu
@pytest.mark.usefixtures("exact_convolutions")
@pytest.mark.parametrize(
    ("name", "pixels", "estimator", "layout"),
    [
        ("resnet26", 32, "median", "contiguous"),
        ("resnet26", 32, "image_median@0.5", "channels_last"),
        ("resnet26", 32, "mad_scaled", "contiguous"),
        ("wide-resnet-28-10", 32, "image_median", "contiguous"),
        ("resnet50", 64, "median", "channels_last"),
    ],
)
def test_outputs_and_gradients_on_a_gpu(name, pixels, estimator, layout, counted):
    fused, own = make_pair(name, estimator, layout)
    images = torch.rand(16, 3, pixels, pixels, device="cuda").contiguous(memory_format=FORMATS[layout])
    results = []
    for model in (fused, own):
        leaf = images.clone().requires_grad_()
        y = model(leaf)
        (gradient,) = torch.autograd.grad(y.square().sum(), leaf)
        results.append((y, gradient))
    assert len(counted) == len(medbn.fused_layers(fused)) > 0
    (y, gradient), (expected, exact) = results
    # Many layers amplify rounding, and a median's gradient goes to one element, which may then be another.
    torch.testing.assert_close(y, expected, rtol=1e-3, atol=1e-3 * expected.abs().max().item())
    assert torch.nn.functional.cosine_similarity(gradient.flatten(), exact.flatten(), dim=0) > 0.99


@pytest.mark.gpu
@pytest.mark.usefixtures("exact_convolutions")
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("estimator", ["median", "image_median", "mad_scaled"])
@pytest.mark.parametrize("create_graph", [False, True])
def test_a_block_on_a_gpu_to_rounding(estimator, layout, create_graph, counted):
    results = []
    x, g = (torch.randn(40, 64, 16, 16, device="cuda").contiguous(memory_format=FORMATS[layout]) for _ in range(2))
    for model in make_pair("resnet26", estimator, layout):
        block, leaf = model.layer1[0], x.clone().requires_grad_()
        y = block(leaf)
        gradients = torch.autograd.grad(y, (leaf, *block.parameters()), g, create_graph=create_graph)
        results.append([y, *gradients])
    assert len(counted) == 2
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4 * max(1.0, expected.abs().max().item()))


@pytest.mark.gpu
def test_autocast_on_a_gpu(counted):
    fused, own = make_pair("resnet26", "image_median", "channels_last")
    images = torch.rand(40, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    with torch.autocast("cuda", torch.bfloat16), torch.no_grad():
        y, expected = fused(images), own(images)
    assert len(counted) == 25
    torch.testing.assert_close(y, expected, rtol=0.1, atol=0.1 * expected.abs().max().item())


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["tebn", "tent", "past"])
@pytest.mark.parametrize("graph", [False, True])
def test_adapters_on_a_gpu(method, graph, counted):
    torch.manual_seed(0)
    model = models.get("resnet-small", channels=3).cuda()
    fused = medbn.adapt(model, method, "image_median@0.5", fuse=True, graph=graph)
    own = medbn.adapt(model, method, "image_median@0.5", graph=False)
    for images in torch.rand(4, 40, 3, 16, 16, device="cuda"):
        torch.testing.assert_close(fused(images), own(images), rtol=1e-2, atol=1e-3)
    assert counted
    snapshot, images = fused.snapshot(), torch.rand(40, 3, 16, 16, device="cuda")
    expected = fused(images)
    fused.restore(snapshot)
    assert torch.equal(fused(images), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("gradient", ["exact", "straight_through", "smooth"])
def test_an_attack_on_a_fused_model_as_a_graph_and_without(gradient, counted):
    torch.manual_seed(0)
    model = models.get("resnet-small", channels=3).cuda()
    images, labels = torch.rand(40, 3, 16, 16, device="cuda"), torch.randint(10, (40,), device="cuda")
    adapter = medbn.adapt(model, "tebn", "image_median", fuse=True)
    adapter(images)
    plain, replayed = (
        medbn.attacks.DIA(medbn.attacks.Targeted(0), steps=4, gradient=gradient, graph=graph)(
            adapter, images, labels, slice(32, None)
        )
        for graph in (False, True)
    )
    assert counted
    torch.testing.assert_close(plain, replayed)


@pytest.mark.gpu
def test_a_graph_is_captured_anew_where_modules_run_their_own_forward_again(counted):
    torch.manual_seed(0)
    model = medbn.convert(models.get("resnet-small", channels=3).cuda().eval(), "median", fuse=True)
    adapter = medbn.adapt(model, "tebn", inplace=True, graph=True)
    images = torch.rand(40, 3, 16, 16, device="cuda")
    for _ in range(3):
        fused = adapter(images)
    count = len(counted)
    assert count
    medbn.fusion.unfuse(adapter.model)
    for _ in range(3):
        own = adapter(images)
    assert len(counted) == count
    torch.testing.assert_close(fused, own, rtol=1e-3, atol=1e-4)
