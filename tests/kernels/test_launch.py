"""Launches through the CUDA driver: the same bits as Triton's own, on a GPU; on a CPU, what would be launched."""

from __future__ import annotations

import itertools
import logging
import os
import subprocess
import sys

import pytest
import torch

import medbn
from medbn import kernels
from medbn.kernels import c, triton
from medbn.kernels.saved import Activation, Spec

from .cases import assert_captured_without_synchronisation


@pytest.mark.slow
@pytest.mark.parametrize("module", ["driven", "compiled"])
def test_the_driver_is_called_with_what_triton_launches(module: str, tmp_path) -> None:
    """Run a module in a process of its own: one interprets Triton's kernels, the other replaces Triton's driver."""
    pytest.importorskip("triton")
    if c.launch_function() is None:
        pytest.skip("the C kernels are not built")
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1" if module == "driven" else "0",
        "TRITON_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-W", "ignore", "-m", f"tests.kernels.{module}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "all agree" in done.stdout


# --- on a GPU ---------------------------------------------------------------------------------------------------------

SHAPES = [(40, 64, 4, 4), (16, 24, 32, 32), (33, 17), (300, 3, 60, 60)]
WAYS = [  # whether statistics are mixed with held ones, the gradient, whether there are affine parameters
    (False, "own", False),
    (True, "own", True),
    (False, "mean", True),
    (True, "smooth", False),
]
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


@pytest.fixture
def by_driver(caplog):
    """Let the driver launch, and check that it never refused."""
    program = pytest.importorskip("medbn.kernels.triton.program")
    if c.launch_function() is None:
        pytest.fail("the C library has no medbn_launch_program: build it with `python setup.py build_ext --inplace`")
    from medbn.kernels.triton import plans

    plans.clear()
    program._logged.clear()
    with caplog.at_level(logging.DEBUG, logger="medbn"), program.use_launcher("driver"):
        yield program
        assert not [record for record in caplog.records if "CUDA driver" in record.message], caplog.text
        assert any(plan.program._bound for plan in plans._plans.values())
    plans.clear()


def compute(x, g, kernel, running, backward, parameters):
    """Return all that a forward and a backward pass write."""
    spec = Spec(kernel, 1.0 if running is None else 0.3, 1e-5, backward, 0.4)
    weight, bias = parameters
    y, saved = kernels.forward(x, weight, bias, running, spec)
    kept = [saved.centre, saved.variance, saved.used_centre, saved.inverse_std, saved.selected, saved.finite]
    return [y, *kept, *kernels.backward(g, x, weight, saved, spec), *triton.statistics(x, kernel)]


def bits(t):
    return t.contiguous().view(torch.uint8)


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", triton.KERNELS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_driver_gives_triton_s_bits(kernel, layout, dtype, by_driver):
    generator = torch.Generator("cuda").manual_seed(0)

    def random(*shape):
        return torch.randn(shape, generator=generator, device="cuda")

    for shape in SHAPES if dtype == torch.float32 else SHAPES[:2]:
        x, g = (random(*shape).to(dtype) for _ in range(2))
        if len(shape) == 4:
            x, g = (t.contiguous(memory_format=LAYOUTS[layout]) for t in (x, g))
        poisoned = x.clone()
        poisoned[(1,) + (0,) * (len(shape) - 1)] = torch.nan
        running = (random(shape[1]), random(shape[1]).abs() + 0.1)
        affine = (random(shape[1]), random(shape[1]))
        for values, (mixed, backward, learns) in itertools.product((x, poisoned), WAYS):
            arguments = (values, g, kernel, running if mixed else None, backward, affine if learns else (None, None))
            with by_driver.use_launcher("triton"):
                expected = compute(*arguments)
            compute(*arguments)  # binds
            results = compute(*arguments)
            for result, value in zip(results, expected, strict=True):
                assert torch.equal(bits(result), bits(value))


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", triton.KERNELS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("adds", [False, True])
def test_the_driver_gives_triton_s_bits_with_a_relu(kernel, layout, adds, by_driver):
    for shape in ((40, 64, 4, 4), (16, 24, 32, 32), (40, 256, 8, 8)):
        generator = torch.Generator("cuda").manual_seed(0)
        x, g, residual = (torch.randn(shape, generator=generator, device="cuda") for _ in range(3))
        x, g, residual = (t.contiguous(memory_format=LAYOUTS[layout]) for t in (x, g, residual))
        running = torch.zeros(shape[1], device="cuda"), torch.ones(shape[1], device="cuda")
        spec = Spec(kernel, 0.3, 1e-5)

        def compute(x=x, g=g, residual=residual, running=running, spec=spec):
            y, saved = triton.forward(x, None, None, running, spec, Activation(residual if adds else None))
            return [t for t in (y, *triton.activated_backward(g, y, x, None, saved, spec, adds)) if t is not None]

        with by_driver.use_launcher("triton"):
            expected = compute()
        compute()  # binds
        for result, value in zip(compute(), expected, strict=True):
            assert torch.equal(result, value)


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", triton.KERNELS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_launches_of_the_driver_are_captured_in_a_graph(kernel, layout, by_driver):
    for shape in ((40, 64, 4, 4), (16, 24, 32, 32)):
        layer = medbn.RobustBatchNorm2d(shape[1], estimator=kernel, device="cuda").eval()
        x, g = (torch.randn(shape, device="cuda").contiguous(memory_format=LAYOUTS[layout]) for _ in range(2))
        x.requires_grad_()

        def step(x=x, g=g, layer=layer):
            return torch.cat([t.flatten() for t in torch.autograd.grad(layer(x), (x, layer.weight), g)])

        with by_driver.use_launcher("triton"):
            expected = step()
        step()  # binds
        assert_captured_without_synchronisation(step)
        assert torch.equal(step(), expected)


@pytest.mark.gpu
def test_the_driver_launches_on_the_current_stream(by_driver):
    x = torch.randn(200, 64, 32, 32, device="cuda")
    layer = medbn.RobustBatchNorm2d(64, device="cuda").eval()
    with torch.no_grad():
        for _ in range(2):
            expected = layer(x)
        side = torch.cuda.Stream()
        for number in range(20):
            values = torch.empty_like(x)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(1_000_000)
                values.copy_(x)  # later than a launch on another stream would read it
                y = layer(values)
            torch.cuda.current_stream().wait_stream(side)
            assert torch.equal(y, expected), number
            values.record_stream(side)


@pytest.mark.gpu
def test_views_that_do_not_begin_at_multiples_of_16_bytes(by_driver):
    flat = torch.randn(40 * 64 * 16 + 1, device="cuda")
    x = flat[1:].view(40, 64, 4, 4)
    layer = medbn.RobustBatchNorm2d(64, device="cuda").eval()
    with torch.no_grad():
        expected = layer(x.clone())
        for _ in range(3):
            torch.testing.assert_close(layer(x), expected, rtol=1e-6, atol=1e-6)
            assert torch.equal(layer(x.clone()), expected)


@pytest.mark.gpu
def test_hooks_of_profilers_see_all_launches(by_driver):
    import triton as package

    x = torch.randn(40, 64, 4, 4, device="cuda")
    layer = medbn.RobustBatchNorm2d(64, device="cuda").eval()
    seen = []
    with torch.no_grad():
        for _ in range(3):
            expected = layer(x)
        package.knobs.runtime.launch_enter_hook.add(seen.append)
        try:
            assert torch.equal(layer(x), expected)
        finally:
            package.knobs.runtime.launch_enter_hook.remove(seen.append)
        assert seen


@pytest.mark.gpu
@pytest.mark.parametrize("launcher", ["triton", "driver"])
def test_threads_launch_together(launcher, by_driver):
    from concurrent.futures import ThreadPoolExecutor

    x = torch.randn(40, 64, 8, 8, device="cuda")
    layer = medbn.RobustBatchNorm2d(64, device="cuda").eval()

    def many(stream):
        with torch.no_grad(), torch.cuda.stream(stream):
            results = [layer(x) for _ in range(50)]
            stream.synchronize()
            return results

    with by_driver.use_launcher(launcher), ThreadPoolExecutor(4) as pool:
        with torch.no_grad():
            expected = layer(x)
        torch.cuda.synchronize()
        for results in pool.map(many, [torch.cuda.Stream() for _ in range(4)]):
            assert all(torch.equal(result, expected) for result in results)
    with torch.no_grad():
        layer(x), layer(x)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("launcher", ["triton", "driver"])
def test_a_tensor_on_another_device_than_the_current_one(launcher, by_driver):
    x = torch.randn(40, 64, 8, 8)
    results = []
    with by_driver.use_launcher(launcher):
        for device in ("cuda:0", "cuda:1"):
            layer = medbn.RobustBatchNorm2d(64, device=device).eval()
            given = x.to(device).requires_grad_()
            for _ in range(3):
                y = layer(given)
                (d_x,) = torch.autograd.grad(y.square().sum(), given)
            results.append((y.cpu(), d_x.cpu()))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    with torch.no_grad():
        layer(x.cuda(1)), layer(x.cuda(1))
