"""Builds the native kernels, which are optional: without a C compiler medbn installs and runs without them."""

from setuptools import Extension, setup

KERNELS = "src/medbn/kernels"
HEADERS = ("native.h", "native_select.h", "native_median.h", "native_passes.h")
FLAGS = ["-std=c11", "-O3", "-g0", "-pthread", "-fvisibility=hidden"]
FLAGS += ["-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"]  # nothing that reorders sums

# Not a Python module: src/medbn/kernels/native.py loads it with ctypes. Each instruction set has a file, which names it
# itself, so that the library runs on any processor of its kind.
setup(
    ext_modules=[
        Extension(
            "medbn.kernels._native",
            sources=[f"{KERNELS}/native{kind}.c" for kind in ("", "_generic", "_avx2", "_avx512")],
            depends=[f"{KERNELS}/{name}" for name in HEADERS],
            extra_compile_args=FLAGS,
            extra_link_args=["-pthread"],
            libraries=["m"],
            optional=True,
        )
    ]
)
