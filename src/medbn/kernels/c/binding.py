"""The native kernels: float32 on CPU in plain C, called through ctypes.

Each function reads the activation once (``image_moments`` twice, from cache), in either memory format, on
``torch.get_num_threads()`` threads, whose number changes no bit of the result. No autograd: inputs are taken as values.
The C sources stand beside this file and are compiled when the package is built; without a compiler there is no library
and ``available()`` is False. Activations are ``(B, C, *)`` for which ``supported`` holds; what is per channel is
``(C,)``, in float32 unless said otherwise.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._errors import unknown_name

__all__ = [
    "MedianStatistics",
    "abs_median",
    "available",
    "channel_backward",
    "combine",
    "image_moments",
    "instruction_sets",
    "median_forward",
    "median_statistics",
    "normalise",
    "reason",
    "reduce",
    "supported",
]

_ISA = ("scalar", "avx2", "avx512")
_NONFINITE, _NO_MEMORY = 1, 2


class _Layout(ctypes.Structure):
    _fields_ = (
        ("images", ctypes.c_int64),
        ("channels", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("last", ctypes.c_int32),
        ("threads", ctypes.c_int32),
    )


_P: Any = ctypes.c_void_p
_ARGUMENTS: dict[str, list[Any]] = {
    "median": [_P] * 6,
    "image_moments": [_P] * 3,
    "normalise": [_P] * 5,
    "reduce": [_P] * 5,
    "combine": [*[_P] * 6, ctypes.c_int, _P],
    "median_forward": [*[_P] * 5, ctypes.c_double, ctypes.c_double, *[_P] * 4],
    "channel_backward": [*[_P] * 8, ctypes.c_double, *[_P] * 3],
}


@functools.cache
def _load() -> tuple[ctypes.CDLL | None, str]:
    """The library, or None and why there is none."""
    folder = Path(__file__).parent
    paths = [
        path for suffix in importlib.machinery.EXTENSION_SUFFIXES if (path := folder / f"_kernels{suffix}").exists()
    ]
    if not paths:
        return None, f"there is no {folder / '_kernels'}*.so; install a C compiler, then install medbn again"
    try:
        library = ctypes.CDLL(str(paths[0]))
        for name, arguments in _ARGUMENTS.items():
            function = getattr(library, f"medbn_{name}")
            function.argtypes = [ctypes.c_int, ctypes.POINTER(_Layout), *arguments]
            function.restype = ctypes.c_int
        library.medbn_best.restype = ctypes.c_int
        library.medbn_share.argtypes = [_P]
        library.medbn_share(_threads_of_torch())
    except (OSError, AttributeError) as error:
        return None, f"cannot load {paths[0]}: {error}"
    return library, ""


def _threads_of_torch() -> int | None:
    """The address of the GOMP_parallel that torch uses, if it can be told; every OpenMP runtime on Linux has one.

    Without it the kernels start threads of their own, which is right too but slower: torch's keep the processor busy.
    """
    try:
        mapped = {line.split(maxsplit=5)[-1].rstrip() for line in Path("/proc/self/maps").read_text().splitlines()}
        runtimes = {path for path in mapped if re.match(r"lib(gomp|iomp5|omp)\b.*\.so", path.rpartition("/")[2])}
        own = {path for path in runtimes if path.startswith(str(Path(torch.__file__).parent))} or runtimes
        return ctypes.cast(ctypes.CDLL(own.pop()).GOMP_parallel, _P).value if len(own) == 1 else None
    except (OSError, AttributeError):
        return None


def available() -> bool:
    """Return whether the library was built and loads."""
    return _load()[0] is not None


# torch.compile calls this once and keeps the result. torch.compiler.assume_constant_result does this too, but imports
# the whole compiler, which takes longer than importing everything else here.
available._dynamo_marked_constant = True  # type: ignore[attr-defined]


def reason() -> str:
    """Why the library is not available; empty when it is."""
    return _load()[1]


def instruction_sets() -> tuple[str, ...]:
    """What this machine can run, best last; ``MEDBN_NATIVE_ISA`` in the environment forces one of them."""
    library, _ = _load()
    return () if library is None else _ISA[: library.medbn_best() + 1]


def supported(x: Tensor) -> bool:
    """Whether the kernels take ``x``: a plain dense float32 CPU tensor ``(B, C, *)``, contiguous or channels last."""
    return (
        type(x) in (Tensor, torch.nn.Parameter)
        and x.device.type == "cpu"
        and x.layout is torch.strided
        and x.dtype is torch.float32
        and x.dim() >= 2
        and 0 < x.numel() < x.shape[1] << 31
        and not x.is_neg()
        and _is_last(x) is not None
    )


@dataclass(frozen=True)
class MedianStatistics:
    """What ``median_statistics`` returns."""

    centre: Tensor
    """The lower median; never −0.0."""
    variance: Tensor
    """The mean of ``(x − centre)²``."""
    deviation: Tensor
    """The sum of ``x − centre``, in float64."""
    index: Tensor
    """Where the median stands first, as a position in (b, h, w) order; int64."""
    finite: bool
    """Whether all of ``x`` is; if not, the rest has no meaning."""


def median_statistics(x: Tensor) -> MedianStatistics:
    """The exact lower median of each channel, where it stands first, and the moments about it."""
    centre, variance, index = _per_channel(x), _per_channel(x), _per_channel(x, torch.int64)
    deviation = _per_channel(x, torch.float64)
    status = _call("median", x, x, None, centre, variance, deviation, index)
    return MedianStatistics(centre, variance, deviation, index, not status & _NONFINITE)


def abs_median(x: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    """The exact lower median of ``|x − centre|`` in each channel, and where it stands first. ``x`` is finite."""
    value, index = _per_channel(x), _per_channel(x, torch.int64)
    _call("median", x, x, _vector(centre, x), value, None, None, index)
    return value, index


def image_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Each image's own mean and biased variance in each channel, both ``(B, C)``."""
    mean, variance = x.new_empty(x.shape[:2]), x.new_empty(x.shape[:2])
    _call("image_moments", x, x, mean, variance)
    return mean, variance


def normalise(x: Tensor, centre: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """``(x − centre) · scale + bias``, in the memory format of ``x``."""
    y = torch.empty_like(x, requires_grad=False)
    _call("normalise", x, x, _vector(centre, x), _vector(scale, x), _vector(bias, x), y)
    return y


def reduce(g: Tensor, x: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    """The sums of ``g`` and of ``g · (x − centre)`` over each channel, in float64."""
    sum_g, sum_gx = _per_channel(x, torch.float64), _per_channel(x, torch.float64)
    _call("reduce", x, _like(g, x), x, _vector(centre, x), sum_g, sum_gx)
    return sum_g, sum_gx


def combine(g: Tensor, x: Tensor, centre: Tensor, a: Tensor, q: Tensor, p: Tensor) -> Tensor:
    """``a · g + q · (x − centre) + p``, in the memory format of ``x``; ``q`` and ``p`` are ``(C,)`` or ``(B, C)``."""
    if q.shape != p.shape:
        raise ValueError(f"q and p must have the same shape, got {tuple(q.shape)} and {tuple(p.shape)}.")
    per_image = q.dim() == 2
    q, p = (_table(t, x) if per_image else _vector(t, x) for t in (q, p))
    dx = torch.empty_like(x, requires_grad=False)
    _call("combine", x, _like(g, x), x, _vector(centre, x), _vector(a, x), q, p, per_image, dx)
    return dx


class MedianForward(NamedTuple):
    """A batch that is normalised with its medians."""

    y: Tensor
    table: Tensor
    """``(4, C)``: centre and variance, then the centre and the 1/σ that were used, after mixing with what is held."""
    deviation: Tensor
    place: Tensor
    """Where the median stands first."""


def median_forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    held: tuple[Tensor, Tensor] | None,
    share: float,
    eps: float,
) -> MedianForward | None:
    """``median_statistics``, mixed with what is held, and ``normalise``; None if something is not finite."""
    table = x.new_empty((6, x.shape[1]))
    deviation, index = _per_channel(x, torch.float64), _per_channel(x, torch.int64)
    y = torch.empty_like(x, requires_grad=False)
    mixed = (None, None) if held is None or share == 1.0 else held
    given = [None if t is None else _vector(t, x) for t in (weight, bias, *mixed)]
    status = _call("median_forward", x, x, *given, share, eps, table, deviation, index, y)
    return None if status & _NONFINITE else MedianForward(y, table[:4], deviation, index)


def channel_backward(
    g: Tensor,
    x: Tensor,
    used: Tensor,
    centre: Tensor,
    scale: Tensor,
    weight: Tensor | None,
    deviation: Tensor,
    index: Tensor | None,
    share: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of input, weight and bias where statistics are of whole channels.

    That of the centre goes to the element at ``index`` or, without one, to all alike, as a mean's does.
    """
    table, sums = x.new_empty((5, x.shape[1])), torch.empty((2, x.shape[1]), dtype=torch.float64)
    dx = torch.empty_like(x, requires_grad=False)
    vectors = [None if t is None else _vector(t, x) for t in (used, centre, scale, weight)]
    _call("channel_backward", x, _like(g, x), x, *vectors, deviation, index, share, sums, table, dx)
    return dx, table[0], table[1]


def _call(name: str, of: Tensor, *arguments: Tensor | float | None) -> int:
    """Call a kernel for the activation ``of``; its status, for what is not an error."""
    library, why = _load()
    if library is None:
        raise RuntimeError(f"the native kernels are not available: {why}.")
    last = _is_last(of)
    if last is None or not supported(of):
        raise ValueError(
            "expected a dense float32 CPU tensor (B, C, *), contiguous or channels last;"
            f" got {of.dtype} on {of.device} of shape {tuple(of.shape)} and strides {of.stride()}."
        )
    layout = _Layout(of.shape[0], of.shape[1], of.numel() // (of.shape[0] * of.shape[1]), last, torch.get_num_threads())
    values = [t.data_ptr() if isinstance(t, Tensor) else t for t in arguments]
    status = int(getattr(library, f"medbn_{name}")(_isa(library), layout, *values))
    if status & _NO_MEMORY:
        raise MemoryError(f"not enough memory for the work space of {name} of shape {tuple(of.shape)}.")
    return status


def _isa(library: ctypes.CDLL) -> int:
    best = int(library.medbn_best())
    forced = os.environ.get("MEDBN_NATIVE_ISA")
    if not forced:
        return best
    if forced not in _ISA[: best + 1]:
        raise unknown_name("MEDBN_NATIVE_ISA", forced, _ISA[: best + 1])
    return _ISA.index(forced)


def _is_last(x: Tensor) -> bool | None:
    """Whether channels are innermost in memory; None if they are neither that nor outside dense planes."""
    if x.is_contiguous():
        return x.numel() == x.shape[0] * x.shape[1]
    return True if x.movedim(1, -1).is_contiguous() else None


def _like(g: Tensor, x: Tensor) -> Tensor:
    """``g`` as float32 in the memory format of ``x``."""
    if g.shape != x.shape:
        raise ValueError(f"expected a gradient of shape {tuple(x.shape)}, got {tuple(g.shape)}.")
    if supported(g) and (_is_last(g) == _is_last(x)):
        return g
    return torch.empty_like(x, requires_grad=False).copy_(g.detach())


def _per_channel(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(x.shape[1], dtype=dtype)


def _vector(values: Tensor, x: Tensor) -> Tensor:
    return _dense(values, (x.shape[1],))


def _table(values: Tensor, x: Tensor) -> Tensor:
    return _dense(values, tuple(x.shape[:2]))


def _dense(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    if tuple(values.shape) != shape:
        raise ValueError(f"expected shape {shape}, got {tuple(values.shape)}.")
    return values.detach().to("cpu", torch.float32).contiguous()
