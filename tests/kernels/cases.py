"""The devices and kernels that tests run on: C here, Triton on a machine with a GPU."""

import pytest

from medbn.kernels import c, triton

needs_c = pytest.mark.skipif(not c.available(), reason="the C kernels are not built")
KERNELS = [
    *(pytest.param("cpu", kernel, marks=needs_c) for kernel in c.KERNELS),
    *(pytest.param("cuda", kernel, marks=pytest.mark.gpu) for kernel in triton.KERNELS),
]
on_each_kernel = pytest.mark.parametrize(("device", "kernel"), KERNELS)
