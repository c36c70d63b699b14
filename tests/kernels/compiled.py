"""Bind the kernels that Triton really compiles, for an H100, and compare what they would be launched with.

Nothing is launched: Triton's launcher and the CUDA driver are simulated, and note what they are called with. The sizes
of parameters are those in the compiled programs.
"""

from __future__ import annotations

import ctypes
import re
import struct
from itertools import product
from types import SimpleNamespace

import torch
import triton

from medbn.kernels.triton import KERNELS, driver, plans, program, tiling

from .simulated_driver import Driver, Fill, Launcher, LaunchKernel, parameter_sizes

SIZES = {"u8": 1, "u16": 2, "u32": 4, "f32": 4, "b32": 4, "u64": 8, "b64": 8, "f64": 8}
LAST = torch.channels_last
ACTIVATIONS = ((False, False), (True, False), (True, True))
"""Whether a ReLU follows, and whether a residual is added before it."""
OPTIONAL = ("residual", "masked", "y")
"""What kernels without a ReLU do not have, in ``compiled.check_optional``."""
STREAM = 5
launched: list[tuple[object, ...]] = []
compiled: dict[int, object] = {}


def sizes_in(kernel) -> list[int]:
    """Return the sizes of the parameters of a compiled program."""
    entry = re.search(r"\.entry\s+\w+\((.*?)\)", kernel.asm["ptx"], re.DOTALL)
    return [SIZES[kind] for kind in re.findall(r"\.param\s+\.(\w+)", entry[1])]


@LaunchKernel
def launch_kernel(function, x, y, z, threads, threads_y, threads_z, shared, stream, parameters, extra):
    sizes = sizes_in(compiled[function])
    values = [ctypes.string_at(parameters[number], size) for number, size in enumerate(sizes)]
    launched.append((function, (x, y, z), threads * threads_y * threads_z, shared, stream, values))
    return 0


@Fill
def fill(address, value, size, stream):
    return 0


parameter_size = parameter_sizes(lambda function: sizes_in(compiled[function]))


def pack(kind: str, value: object) -> bytes:
    """Return a parameter as Triton's launcher packs it."""
    if kind.startswith("*"):
        return struct.pack("<Q", value.data_ptr())
    return struct.pack({"i32": "<i", "i64": "<q", "fp32": "<f"}[kind], value)


def expected(kernel, call) -> tuple[object, ...]:
    """Return what Triton's launcher was called with, as the driver is."""
    *grid, stream, function = call[:5]
    assert stream == 0
    kinds = list(kernel.src.signature.values())
    own = [pack(kind, v) for kind, v in zip(kinds, call[9:], strict=True) if kind != "constexpr"]
    return (
        function,
        tuple(grid),
        32 * kernel.metadata.num_warps,
        kernel.metadata.shared,
        STREAM,
        [*own, *[bytes(8)] * 2],
    )


def check(run: program.Program, tensors) -> None:
    """Check that the driver is called with what Triton's launcher is called with."""
    kernels = []
    bind = driver.bind

    def note(steps, bound, *rest):
        kernels.extend(bound)
        compiled.update({kernel.function: kernel for kernel in bound})
        return bind(steps, bound, *rest)

    driver.bind = note
    Launcher.calls.clear()
    launched.clear()
    with program.use_launcher("driver"):
        run.run(-1, tensors, 1e-5, 0.3)
        assert not launched
        run.run(-1, tensors, 1e-5, 0.3)
    driver.bind = bind
    assert run._bound is not None
    assert len(launched) == len(kernels) == len(Launcher.calls) > 0
    for kernel, call, found in zip(kernels, Launcher.calls, launched, strict=True):
        assert found == expected(kernel, call), kernel.name


def check_optional() -> None:
    """Check that programs without a ReLU have no parameter for one, and that there are such with one."""
    seen = set()
    for kernel in compiled.values():
        kinds, constants = kernel.src.signature, kernel.src.constants
        relu = any(value is True for key, value in constants.items() if kernel.src.fn.arg_names[key[0]] == "RELU")
        given = {name for name, kind in kinds.items() if name in OPTIONAL and kind != "constexpr"}
        writes = {"y"} if "residual" in kinds else set()  # of a forward pass, y is the output
        assert relu or given <= writes, (kernel.src.fn.__name__, given)
        seen |= {(kernel.src.fn.__name__, relu, name) for name in given}
    assert ("normalise", True, "residual") in seen
    assert ("reduce", True, "masked") in seen
    assert ("combine", True, "masked") in seen


def check_whole_channels() -> None:
    """Check a backward pass whose one kernel masks g for itself, and writes it for a residual alone."""
    x, weight = torch.empty(6, 132, 8, 8), torch.empty(132)
    saved = plans.saved_layout("median", tiling.Shape.of(x)).allocate("saved", x.device)
    for adds in (False, True):
        backward = plans.backward_plan(x, x, weight, "median", False, True, adds)
        assert backward.masks == adds
        masked = torch.empty_like(x) if adds else None
        affine = torch.empty(2, 132)
        check(backward.program, (x, x, torch.empty_like(x), weight, affine, saved, None, torch.empty_like(x), masked))


def main() -> None:
    triton.runtime.driver.set_active(Driver())
    tiling.processors_of = lambda device: 132
    library = SimpleNamespace(cuLaunchKernel=launch_kernel, cuMemsetD32Async=fill, cuFuncGetParamInfo=parameter_size)
    driver.cuda = lambda: library
    program._stream = lambda index: STREAM
    contiguous = torch.contiguous_format
    shapes = ((6, 5, 8, 8), contiguous), ((9, 6, 40, 40), contiguous), ((9, 16, 40, 40), LAST)
    for name, (shape, layout) in product(KERNELS, shapes):
        x = torch.empty(shape).contiguous(memory_format=layout)
        weight, bias, centre, variance = torch.empty(4, 132).unbind()
        activations = ACTIVATIONS if name == "median" else ACTIVATIONS[::2]
        for running, (relu, adds) in [((centre, variance), ACTIVATIONS[0]), *product((None,), activations)]:
            plan = plans.forward_plan(x, weight, bias, running, name, True, relu, adds)
            saved, scratch = (plan.layout.allocate(buffer, x.device) for buffer in ("saved", "scratch"))
            tensors = (x, torch.empty_like(x), weight, bias, *(running or (None, None)), saved, scratch)
            check(plan.program, (*tensors, torch.empty_like(x)) if adds else tensors)
        for mean, (relu, adds) in [(True, ACTIVATIONS[0]), *product((False,), activations)]:
            backward = plans.backward_plan(x, x, weight, name, mean, relu, adds)
            scratch = backward.layout.allocate("scratch", x.device)
            affine = torch.empty(2, shape[1])
            tensors = (x, x, torch.empty_like(x), weight, affine, saved, scratch)
            masked = torch.empty_like(x) if backward.masks else None
            check(backward.program, (*tensors, torch.empty_like(x), masked) if relu else tensors)
    check_whole_channels()
    check_optional()
    found = {kernel.src.fn.__name__ for kernel in compiled.values()}
    assert len(found) == 12, found
    print("all agree")


if __name__ == "__main__":
    main()
