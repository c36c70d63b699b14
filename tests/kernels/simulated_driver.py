"""Stands for Triton's driver of a GPU: kernels are really specialised and compiled, for an H100, and not launched."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from typing import Any, ClassVar

from triton.backends.compiler import GPUTarget

TARGET = GPUTarget("cuda", 90, 32)

LaunchKernel = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    *[ctypes.c_uint] * 7,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
)
"""The type of ``cuLaunchKernel``."""
Fill = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p)
"""The type of ``cuMemsetD32Async``."""


def parameter_sizes(sizes_of: Callable[[int], list[int]]) -> Callable[[int, int, object, Any], int]:
    """Return ``cuFuncGetParamInfo``, given the sizes of the parameters of a function."""

    def get(function: int, number: int, offset: object, size: Any) -> int:
        sizes = sizes_of(function)
        if number >= len(sizes):
            return 1
        size._obj.value = sizes[number]
        return 0

    return get


class Launcher:
    """What calls the driver in Triton: it keeps what it was called with."""

    calls: ClassVar[list[tuple[Any, ...]]] = []

    def __init__(self, source: Any, metadata: Any) -> None:
        pass

    def __call__(self, *arguments: Any) -> None:
        self.calls.append(arguments)


class Utils:
    """The functions of the CUDA driver that load a kernel."""

    def __init__(self) -> None:
        self._handles = itertools.count(1000)

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 232448, "multiprocessor_count": 132}

    def load_binary(self, *arguments: Any) -> tuple[int, ...]:
        return 1, next(self._handles), 32, 0, 1024

    def unload_module(self, module: int) -> None:
        pass


class Driver:
    """``triton.runtime.driver.set_active`` takes this."""

    launcher_cls = Launcher

    def __init__(self) -> None:
        self.utils = Utils()

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return TARGET
