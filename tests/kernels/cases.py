"""The devices and kernels that tests run on, C here and Triton on a machine with a GPU, and what holds for all."""

import warnings

import pytest
import torch

from medbn.kernels import c, triton

needs_c = pytest.mark.skipif(not c.available(), reason="the C kernels are not built")
KERNELS = [
    *(pytest.param("cpu", kernel, marks=needs_c) for kernel in c.KERNELS),
    *(pytest.param("cuda", kernel, marks=pytest.mark.gpu) for kernel in triton.KERNELS),
]
on_each_kernel = pytest.mark.parametrize(("device", "kernel"), KERNELS)


def assert_captured_without_synchronisation(step):
    """Assert that a function on a GPU never waits for it, and that a CUDA graph of it gives the same bits."""
    expected = step()
    torch.cuda.synchronize()
    try:
        with warnings.catch_warnings():  # it warns that it may miss some synchronisations
            warnings.simplefilter("ignore")
            torch.cuda.set_sync_debug_mode("error")
        again = step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(again, expected)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(result, expected)
