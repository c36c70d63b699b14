"""Load the compiled C kernels with ctypes, and choose the instruction set and the threads that they use.

The sources stand beside this file and are compiled when the package is built. Without a C compiler there is no library
and ``available()`` is False.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import os
import re
from pathlib import Path
from typing import Any

import torch

from ..._errors import unknown_name

INSTRUCTION_SETS = ("scalar", "avx2", "avx512")
"""In the order of the C enum; ``"scalar"`` is what the compiler makes of vectors of four on any processor."""
NONFINITE, NO_MEMORY = 1, 2
"""Bits of the status that a C function returns."""
POINTER: Any = ctypes.c_void_p


class Layout(ctypes.Structure):
    """``struct layout`` in ``kernels.h``: the shape of an activation and the number of threads."""

    _fields_ = (
        ("images", ctypes.c_int64),
        ("channels", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("last", ctypes.c_int32),
        ("threads", ctypes.c_int32),
    )


_ARGUMENTS: dict[str, list[Any]] = {
    "median": [POINTER] * 6,
    "image_moments": [POINTER] * 3,
    "normalise": [POINTER] * 5,
    "reduce": [POINTER] * 5,
    "combine": [*[POINTER] * 6, ctypes.c_int, POINTER],
    "median_forward": [*[POINTER] * 5, ctypes.c_double, ctypes.c_double, *[POINTER] * 4],
    "image_forward": [*[POINTER] * 5, ctypes.c_double, ctypes.c_double, *[POINTER] * 6],
    "image_backward": [*[POINTER] * 9, ctypes.c_double, *[POINTER] * 4],
    "channel_backward": [*[POINTER] * 8, ctypes.c_double, *[POINTER] * 3],
}
"""The arguments of ``medbn_<name>``, after the instruction set and the layout."""


@functools.cache
def load() -> tuple[ctypes.CDLL | None, str]:
    """Return the library, or None and why there is none."""
    folder = Path(__file__).parent
    suffixes = reversed(importlib.machinery.EXTENSION_SUFFIXES)  # those of one Python version last: builds of before
    paths = [path for suffix in suffixes if (path := folder / f"_kernels{suffix}").exists()]
    if not paths:
        return None, f"there is no {folder / '_kernels'}*.so; install a C compiler, then install medbn again"
    try:
        library = ctypes.CDLL(str(paths[0]))
        for name, arguments in _ARGUMENTS.items():
            function = getattr(library, f"medbn_{name}")
            function.argtypes = [ctypes.c_int, ctypes.POINTER(Layout), *arguments]
            function.restype = ctypes.c_int
        library.medbn_best_instruction_set.restype = ctypes.c_int
        library.medbn_use_threads.argtypes = [POINTER]
        library.medbn_use_threads(openmp_of_torch())
    except (OSError, AttributeError) as error:
        return None, f"cannot load {paths[0]}: {error}; install medbn again"
    return library, ""


def openmp_of_torch() -> int | None:
    """Return the address of ``GOMP_parallel`` in the OpenMP runtime that torch uses; None if it cannot be found.

    Every OpenMP runtime on Linux has this function. Without it the kernels start threads of their own. Results are the
    same, but slower: torch's threads stay busy for a while after each of its operations, and compete with others.
    """
    try:
        mapped = {line.split(maxsplit=5)[-1].rstrip() for line in Path("/proc/self/maps").read_text().splitlines()}
        runtimes = {path for path in mapped if re.match(r"lib(gomp|iomp5|omp)\b.*\.so", path.rpartition("/")[2])}
        own = {path for path in runtimes if path.startswith(str(Path(torch.__file__).parent))} or runtimes
        return ctypes.cast(ctypes.CDLL(own.pop()).GOMP_parallel, POINTER).value if len(own) == 1 else None
    except (OSError, AttributeError):
        return None


@functools.cache
def launch_function() -> Any:
    """Return ``medbn_launch_program`` of ``launch.c``, which launches a GPU's kernels; None where it is missing."""
    library, _ = load()
    try:
        launch = library.medbn_launch_program  # type: ignore[union-attr]
    except AttributeError:  # also in a library that was built before there was this function
        return None
    launch.argtypes = [POINTER, POINTER, ctypes.c_double, ctypes.c_double, *[ctypes.c_uint64] * 9]
    launch.restype = ctypes.c_int
    return launch


def available() -> bool:
    """Return whether the library was built and loads."""
    return load()[0] is not None


# torch.compile calls this once and keeps the result. torch.compiler.assume_constant_result does this too, but imports
# the whole compiler, which takes longer than importing everything else here.
available._dynamo_marked_constant = True  # type: ignore[attr-defined]


def reason() -> str:
    """Return why the library is not available; empty when it is."""
    return load()[1]


def instruction_sets() -> tuple[str, ...]:
    """Return the instruction sets that this processor has, the fastest last.

    The environment variable ``MEDBN_C_ISA`` forces one of them; without it the fastest is used.
    """
    return INSTRUCTION_SETS[: _best_instruction_set() + 1]


@functools.cache
def _best_instruction_set() -> int:
    library, _ = load()
    return -1 if library is None else int(library.medbn_best_instruction_set())


def selected_instruction_set() -> int:
    """Return the index of the instruction set to use."""
    best = _best_instruction_set()
    forced = os.environ.get("MEDBN_C_ISA")
    if not forced:
        return best
    if forced not in INSTRUCTION_SETS[: best + 1]:
        raise unknown_name("MEDBN_C_ISA", forced, INSTRUCTION_SETS[: best + 1])
    return INSTRUCTION_SETS.index(forced)
