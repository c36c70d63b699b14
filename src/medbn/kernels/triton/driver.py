"""Launch all kernels of a layer in one call of our C library, through the CUDA driver.

Triton's own launch examines 20 to 30 arguments of each kernel anew. A program of launches always has the same ones, but
for the addresses of its tensors and two numbers. So, once Triton has compiled and launched the kernels, ``bind`` makes
parameter blocks for ``kernels/c/launch.c`` of what it compiled. Whatever is not as expected raises an
``UnsupportedError``, and Triton goes on launching.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .. import c
from .launch import BATCH_WEIGHT, EPS, Fill, Launch, Step
from .layout import Layout

CUDA = "libcuda.so.1"
TENSORS = 9
"""The most tensors of a program, as in ``launch.c``."""
MOST_PARAMETERS = 64
HIDDEN = 2
"""The most parameters that Triton adds after a kernel's own: addresses of scratch memory, of which our kernels need
none."""
_SIZES = {"i32": 4, "u32": 4, "fp32": 4, "f32": 4, "i64": 8, "u64": 8}
_FUNCTIONS = ("cuLaunchKernel", "cuMemsetD32Async", "cuFuncGetParamInfo")


class UnsupportedError(Exception):
    """Why kernels are launched by Triton."""


class Compiled(NamedTuple):
    """What the driver needs to know of a kernel that Triton has compiled."""

    function: int
    """The driver's handle."""
    threads: int
    shared: int
    """Bytes of shared memory."""
    types: Mapping[str, str]
    """The type of each argument by name, as Triton writes it; ``"constexpr"`` for what is compiled in."""
    names: Sequence[str]
    """The arguments in order, constants included."""


class Bound:
    """A program's launches as one call. It keeps alive what the C structures point to."""

    def __init__(self, launch: Any, address: int, kept: Any) -> None:
        self.launch, self.address, self._kept = launch, address, kept


class _Parameter(ctypes.Structure):
    _fields_ = (("value", ctypes.c_uint64), ("tensor", ctypes.c_int64))


class _Step(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint32 * 3),
        ("threads", ctypes.c_uint32),
        ("shared", ctypes.c_uint32),
        ("parameters", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    _fields_ = (
        ("launch", ctypes.c_void_p),
        ("fill", ctypes.c_void_p),
        ("steps", ctypes.POINTER(_Step)),
        ("parameters", ctypes.POINTER(_Parameter)),
        ("count", ctypes.c_int64),
    )


@functools.cache
def cuda() -> Any:
    """Return the driver's library; raise UnsupportedError where it is missing, or older than CUDA 12.4."""
    try:
        library = ctypes.CDLL(CUDA)
        functions = [getattr(library, name) for name in _FUNCTIONS]
    except (OSError, AttributeError) as error:
        raise UnsupportedError(f"the CUDA driver is missing or old: {error}") from error
    functions[-1].argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.POINTER(ctypes.c_size_t)] * 2]
    return library


def describe(kernel: Any) -> Compiled:
    """Return what to launch of what Triton's own launch returned."""
    kernel = kernel.result() if hasattr(kernel, "result") else kernel  # compiled in another thread
    try:
        about, signature, names = kernel.metadata, kernel.src.signature, kernel.src.fn.arg_names
        function, threads = int(kernel.function), 32 * int(about.num_warps)
        if about.target.backend != "cuda":
            raise UnsupportedError(f"the target is {about.target.backend}")
        special = {name: getattr(about, name, None) for name in _SPECIAL}
    except (AttributeError, TypeError) as error:
        raise UnsupportedError(f"Triton returned something unknown: {error}") from error
    for name, value in special.items():
        if value not in _SPECIAL[name]:
            raise UnsupportedError(f"a kernel has {name} = {value}")
    return Compiled(function, threads, int(about.shared), dict(signature), tuple(names))


_SPECIAL: dict[str, tuple[Any, ...]] = {
    "num_ctas": (1,),
    "cluster_dims": (None, (1, 1, 1), [1, 1, 1]),
    "global_scratch_size": (None, 0),
    "profile_scratch_size": (None, 0),
    "launch_cooperative_grid": (None, False),
    "launch_pdl": (None, False),
    "tensordesc_meta": (None, [], ()),
}
"""What would need a launch of another kind, with the values that do not."""


def bind(steps: Sequence[Step], kernels: Sequence[Any], layout: Layout, tensors: Sequence[str]) -> Bound:
    """Return a program's launches as one call.

    Args:
        steps: launches and fills, in order.
        kernels: what Triton's launches returned, in the same order.
        layout: the places of small tensors.
        tensors: the names of the tensors that are given with each call, buffers included, in order.
    """
    launch = c.launch_function()
    if launch is None:
        raise UnsupportedError("the C library is missing, or was built before it could launch")
    driver = cuda()
    if len(tensors) > TENSORS:
        raise UnsupportedError(f"{len(tensors)} tensors")
    where = {name: (number, 0) for number, name in enumerate(tensors)}
    where |= {name: (tensors.index(p.buffer), p.offset) for name, p in layout.places.items() if p.buffer in tensors}
    where |= {EPS: (TENSORS, 0), BATCH_WEIGHT: (TENSORS + 1, 0)}
    rows: list[_Step] = []
    parameters: list[_Own] = []
    compiled = iter(kernels)
    for step in steps:
        if isinstance(step, Fill):
            tensor, offset = where[step.name]
            own = [_Own(offset, tensor, 8)]
            rows.append(_Step(None, (step.value, step.size, 1), 1, 0, 1))
        else:
            kernel = describe(next(compiled))
            own = _parameters(step, kernel, where)
            own += [_Own(0, -1, 8)] * _count_hidden(driver, kernel.function, [each.size for each in own])
            grid = (*step.grid, 1, 1)[:3]
            rows.append(_Step(kernel.function, grid, kernel.threads, kernel.shared, len(own)))
        if len(own) > MOST_PARAMETERS:
            raise UnsupportedError(f"a kernel has {len(own)} parameters")
        parameters += own
    program = _Program(
        _address(driver.cuLaunchKernel),
        _address(driver.cuMemsetD32Async),
        (_Step * len(rows))(*rows),
        (_Parameter * len(parameters))(*(_Parameter(each.value, each.tensor) for each in parameters)),
        len(rows),
    )
    return Bound(launch, ctypes.addressof(program), (program, tuple(kernels)))


class _Own(NamedTuple):
    """A parameter: a value, or what is added to a tensor's address or to a number of the call, and its size."""

    value: int
    tensor: int
    size: int


def _parameters(step: Launch, kernel: Compiled, where: Mapping[str, tuple[int, int]]) -> list[_Own]:
    """Return what a launch gives to a kernel, without the arguments that Triton has compiled in."""
    own = []
    for name, argument in zip(kernel.names, step.arguments, strict=False):  # constants follow, by name
        kind = kernel.types[name]
        if kind == "constexpr":
            if argument not in (1, None):
                raise UnsupportedError(f"{name} = {argument} is compiled in")
            continue
        if argument is None:
            raise UnsupportedError(f"{name} is of type {kind}, and is not given")
        pointer = kind.startswith("*")
        if not pointer and kind not in _SIZES:
            raise UnsupportedError(f"{name} is of type {kind}")
        size = 8 if pointer else _SIZES[kind]
        if isinstance(argument, str):
            if pointer == (argument in (EPS, BATCH_WEIGHT)) or (not pointer and kind not in ("fp32", "f32")):
                raise UnsupportedError(f"{argument} is of type {kind}")
            tensor, offset = where[argument]
            own.append(_Own(offset, tensor, size))
        elif pointer or isinstance(argument, int) == (kind in ("fp32", "f32")):
            raise UnsupportedError(f"{argument} is of type {kind}")
        elif isinstance(argument, int):
            own.append(_Own(argument % 2 ** (8 * size), -1, size))
        else:
            own.append(_Own(struct.unpack("<I", struct.pack("<f", argument))[0], -1, size))
    return own


def _count_hidden(driver: Any, function: int, sizes: Sequence[int]) -> int:
    """Return how many parameters a kernel has beside those of these sizes; raise UnsupportedError if it has others."""
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    expected = [*sizes, *[8] * HIDDEN]
    found = 0
    while not driver.cuFuncGetParamInfo(function, found, ctypes.byref(offset), ctypes.byref(size)):
        if found == len(expected) or size.value != expected[found]:
            raise UnsupportedError(f"parameter {found} has {size.value} bytes")
        found += 1
    if found < len(sizes):
        raise UnsupportedError(f"a kernel has {found} parameters, not {len(sizes)}")
    return found - len(sizes)


def _address(function: Any) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value
