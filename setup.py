"""Build the C kernels, which are optional: without a C compiler medbn installs and runs without them.

MEDBN_PURE=1 leaves them out, for the wheel of systems that have no wheel of their own.
"""

import os
from glob import glob

from setuptools import Extension, setup

FOLDER = "src/medbn/kernels/c"
SOURCES = ("kernels", "image_median", "threads", "generic", "avx2", "avx512", "launch")
FLAGS = ["-std=c11", "-O3", "-g0", "-pthread", "-fvisibility=hidden"]
FLAGS += ["-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"]  # nothing that reorders sums

# Not a Python module: src/medbn/kernels/c/library.py loads it with ctypes. Each instruction set has its own file, so
# that the library runs on every processor of its architecture. It uses nothing of Python, so that one wheel serves all
# versions: that is what py_limited_api says.
KERNELS = Extension(
    "medbn.kernels.c._kernels",
    sources=[f"{FOLDER}/{name}.c" for name in SOURCES],
    depends=sorted(glob(f"{FOLDER}/*.h")),
    extra_compile_args=FLAGS,
    extra_link_args=["-pthread"],
    libraries=["m"],
    optional=True,
    py_limited_api=True,
)

if os.environ.get("MEDBN_PURE") == "1":
    setup()
else:
    setup(ext_modules=[KERNELS], options={"bdist_wheel": {"py_limited_api": "cp310"}})
