"""Launch all kernels through ``kernels/c/launch.c`` on a CPU: the CUDA driver is a fake that runs Triton's interpreter.

The fake knows nothing but what the driver would be given: a handle, a grid, and addresses of parameters. So equal bits
show that parameter blocks have the right values at the right places.
"""

from __future__ import annotations

import ctypes
import logging
from itertools import product
from types import SimpleNamespace

import torch

from medbn.kernels import smooth, triton
from medbn.kernels.saved import Activation, Spec
from medbn.kernels.triton import (
    driver,
    gradient,
    images,
    median,
    normalise,
    plans,
    program,
    small_channel,
    survey,
)

from .interpreted import CONTIGUOUS, LAST, cut, make
from .simulated_driver import Fill, LaunchKernel, parameter_sizes

LAUNCHED = {
    small_channel: ["normalise_small_channels"],
    survey: ["bracket", "survey"],
    median: ["finish"],
    normalise: ["normalise"],
    images: ["image_moments", "image_statistics", "image_gradient", "selected_image_gradient"],
    gradient: ["reduce", "add_parts", "combine"],
}
TYPES = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.bfloat16: "*bf16",
    torch.int32: "*i32",
}
STREAM = 77


class Compiled:
    """What Triton's launch of a kernel returns, as far as ``driver.describe`` looks at it."""

    def __init__(self, kernel, types, constants, absent) -> None:
        self.kernel, self.constants, self.absent = kernel, constants, absent
        self.function = 1000 + len(handles)
        handles[self.function] = self
        target = SimpleNamespace(backend="cuda")
        self.metadata = SimpleNamespace(num_warps=constants["num_warps"], shared=48, target=target, num_ctas=1)
        self.src = SimpleNamespace(signature=types, fn=SimpleNamespace(arg_names=kernel.arg_names))

    def sizes(self):
        own = [t for t in self.src.signature.values() if t != "constexpr"]
        return [8 if t.startswith("*") else driver._SIZES[t] for t in own] + [8, 8]


handles: dict[int, Compiled] = {}
by_triton: list[str] = []
by_driver: list[str] = []


class Kernel:
    """An interpreted kernel whose launch returns a ``Compiled``."""

    def __init__(self, function) -> None:
        self.function, self.name = function, function.fn.__name__
        self.arg_names = function.arg_names
        self.pre_run_hooks = []

    def __getitem__(self, grid):
        def launch(*arguments, **constants):
            by_triton.append(self.name)
            self.function[grid](*arguments, **constants)
            types = dict.fromkeys(self.arg_names, "constexpr")
            for name, value in zip(self.arg_names, arguments, strict=False):
                types[name] = self.type_of(name, value)
            absent = [name for name, value in zip(self.arg_names, arguments, strict=False) if value is None]
            return Compiled(self, types, constants, absent)

        return launch

    def type_of(self, name, value):
        if isinstance(value, torch.Tensor):
            return TYPES[value.dtype]
        if isinstance(value, float):
            return "fp32"
        return "constexpr" if value is None or (value == 1 and name != "one") else "i32"


def read(kind, address):
    """Return the parameter of a type at an address, as the driver's copy of it would be."""
    if kind.startswith("*"):
        dtype = next(dtype for dtype, text in TYPES.items() if text == kind)
        target = ctypes.c_uint64.from_address(address).value
        return torch.frombuffer((ctypes.c_char * 8).from_address(target), dtype=dtype)
    return {"i32": ctypes.c_int32, "fp32": ctypes.c_float}[kind].from_address(address).value


@LaunchKernel
def launch_kernel(function, x, y, z, threads, threads_y, threads_z, shared, stream, parameters, extra):
    kernel = handles[function]
    assert (threads, threads_y, threads_z) == (32 * kernel.constants["num_warps"], 1, 1)
    assert (z, shared, stream, extra) == (1, 48, STREAM, None)
    given = [(name, kind) for name, kind in kernel.src.signature.items() if kind != "constexpr"]
    values = {name: read(kind, parameters[number]) for number, (name, kind) in enumerate(given)}
    for hidden in (0, 1):
        assert ctypes.c_uint64.from_address(parameters[len(given) + hidden]).value == 0
    names = [name for name in kernel.kernel.arg_names if name not in kernel.constants]
    by_driver.append(kernel.kernel.name)
    kernel.kernel.function[x, y](
        *(values.get(name, None if name in kernel.absent else 1) for name in names), **kernel.constants
    )
    return 0


@Fill
def fill(address, value, size, stream):
    assert stream == STREAM
    (ctypes.c_uint32 * size).from_address(address)[:] = [value] * size
    return 0


parameter_size = parameter_sizes(lambda function: handles[function].sizes())


def run(shape, kind, layout, name, batch_weight=1.0, backward="own", affine=True, dtype=torch.float32, adds=None):
    """Return all results of a forward and a backward pass, and of the statistics alone."""
    torch.manual_seed(0)
    x = make(shape, kind, layout).to(dtype)
    g = torch.randn_like(x)
    channels = shape[1]
    running = None if batch_weight == 1.0 else (torch.randn(channels), torch.rand(channels) + 0.1)
    weight, bias = (torch.randn(channels), torch.randn(channels)) if affine else (None, None)
    spec = Spec(name, batch_weight, 1e-5, backward, 0.4)
    if adds is not None:
        y, saved = triton.forward(x, weight, bias, running, spec, Activation(g + 1 if adds else None))
        gradients = triton.activated_backward(g, y, x, weight, saved, spec, adds)
        return [y, *(t for t in gradients if t is not None)]
    y, saved = triton.forward(x, weight, bias, running, spec)
    differentiate = smooth.gpu_backward if backward == "smooth" else triton.backward
    gradients = differentiate(g, x, weight, saved, spec)
    return [y, saved.centre, saved.variance, *gradients, *triton.statistics(x, name)]


def check(shape, kind, layout, name, batch_weight=1.0, backward="own", **options) -> None:
    """Check that the driver launches the same as Triton, to the same bits, from the second call on."""
    arguments = (shape, kind, layout, name, batch_weight, backward)
    with program.use_launcher("triton"):
        expected = run(*arguments, **options)
    with program.use_launcher("driver"):
        by_driver.clear()
        run(*arguments, **options)
        by_triton.clear()
        by_driver.clear()
        results = run(*arguments, **options)
        separate = name == "median" and backward == "smooth"  # which replaces a tensor of what was saved
        assert by_driver
        assert bool(by_triton) == separate, by_triton
    for result, value in zip(results, expected, strict=True):
        assert torch.equal(result.nan_to_num(7e7), value.nan_to_num(7e7))
        assert result.stride() == value.stride()


def check_each_kernel() -> None:
    for name, layout in product(("median", "mad_scaled", "image_median"), (CONTIGUOUS, LAST)):
        check((3, 2, 2, 3), "nan", layout, name, 0.3)
        check((3, 2, 2, 3), "nan", layout, name, 0.3, adds=layout is LAST)


def passes(launched_by, x, weight=None, eps=1e-5):
    """Check who launches a forward pass; return its result."""
    by_triton.clear()
    by_driver.clear()
    y, _ = triton.forward(x, weight, None, None, Spec("median", 1.0, eps))
    assert bool(by_triton) == (launched_by == "triton")
    assert bool(by_driver) == (launched_by == "driver")
    return y


def check_falls_back() -> None:
    """Check when Triton launches after all, and that the reason is logged once."""
    x, unaligned = torch.randn(4, 2, 3), torch.rand(9)[1:3]
    weight = unaligned.clone()
    plans.clear()
    with program.use_launcher("driver"):
        passes("triton", x, unaligned)  # of which nothing is kept
        passes("triton", x, weight)
        expected = passes("driver", x, weight)
        weight *= 2
        assert not torch.equal(passes("driver", x, weight), expected)
        weight.copy_(unaligned)
        assert torch.equal(passes("triton", x, unaligned), expected)
        passes("driver", x, weight)
        hook = program._runtime.launch_enter_hook
        hook.add(print)
        passes("triton", x, weight)
        hook.remove(print)
        passes("driver", x, weight)
        with program.use_launcher("triton"):
            passes("triton", x, weight)
        expected = passes("driver", x, weight, 0.5)  # another number, the same program
        with program.use_launcher("triton"):
            assert torch.equal(passes("triton", x, weight, 0.5), expected)
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logger = logging.getLogger("medbn")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    changes = {
        "launch_cooperative_grid = True": lambda c: setattr(c.metadata, "launch_cooperative_grid", True),
        "global_scratch_size = 64": lambda c: setattr(c.metadata, "global_scratch_size", 64),
        "cluster_dims": lambda c: setattr(c.metadata, "cluster_dims", (2, 1, 1)),
        "target is hip": lambda c: setattr(c.metadata.target, "backend", "hip"),
        "something unknown": lambda c: delattr(c.src, "signature"),
        "x is of type i32": lambda c: c.src.signature.update(x="i32"),
        "parameter 6 has 8 bytes": lambda c: setattr(c, "sizes", lambda: [8] * 20),
        "a kernel has 3 parameters": lambda c: setattr(c, "sizes", lambda: [8] * 3),
        "of type tensordesc": lambda c: c.src.signature.update(B="tensordesc"),
        "B = 4 is compiled in": lambda c: c.src.signature.update(B="constexpr"),
    }
    init = Compiled.__init__
    for change in changes.values():

        def changed(self, *arguments, change=change):
            init(self, *arguments)
            change(self)

        Compiled.__init__ = changed
        plans.clear()
        with program.use_launcher("driver"):
            for _ in range(3):
                passes("triton", x, weight)
        Compiled.__init__ = init
    failing = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 11)(lambda *_: 700)
    driver.cuda = lambda: SimpleNamespace(
        cuLaunchKernel=failing, cuMemsetD32Async=fill, cuFuncGetParamInfo=parameter_size
    )
    plans.clear()
    with program.use_launcher("driver"):
        passes("triton", x, weight)
        for _ in range(3):
            assert torch.equal(passes("triton", x, weight), passes("triton", x, weight))
    assert sum("error 700" in message for message in messages) == 1, messages
    for reason in changes:
        assert sum(reason in message for message in messages) == 1, (reason, messages)


def main() -> None:
    for module, names in LAUNCHED.items():
        for name in names:
            setattr(module, name, Kernel(getattr(module, name)))
    library = SimpleNamespace(cuLaunchKernel=launch_kernel, cuMemsetD32Async=fill, cuFuncGetParamInfo=parameter_size)
    driver.cuda = lambda: library
    program._stream = lambda index: STREAM
    check((4, 2, 3), "random", CONTIGUOUS, "median", affine=False)
    check((3, 2, 2, 2), "nan", LAST, "median", 0.3, "mean")
    check((3, 4, 2, 2), "nan", CONTIGUOUS, "median", 0.3, adds=True)
    check((3, 4, 2, 2), "nan", CONTIGUOUS, "median", adds=False)
    check((3, 4, 2), "random", CONTIGUOUS, "median", 0.3, "smooth", dtype=torch.bfloat16)
    cut(SMALL_CHANNEL=4, LESS_SMALL_CHANNEL=4, TILE=16, SURVEY_TILE=32, PARTS_PER_PROGRAM=1)
    cut(COLLECTED_IN_REGISTERS=8, SPARE=0)
    check_each_kernel()
    names = {kernel.kernel.name for kernel in handles.values()}
    assert names == {name for names in LAUNCHED.values() for name in names}
    check_falls_back()
    print("all agree")


if __name__ == "__main__":
    main()
