"""The C kernels: float32 on a CPU, contiguous or channels last, with the gradient in closed form.

``kernels.triton`` has the same front door, and ``kernels.dispatch`` chooses between the two. ``kernels.smooth`` builds
its backward pass from ``reduce``, ``combine`` and ``isolate_nonfinite``. ``kernels.triton`` launches with
``launch_function``.
"""

from .binding import combine, reduce
from .library import available, instruction_sets, launch_function, reason
from .orchestration import KERNELS, backward, dense, forward, isolate_nonfinite, statistics, supported

__all__ = [
    "KERNELS",
    "available",
    "backward",
    "combine",
    "dense",
    "forward",
    "instruction_sets",
    "isolate_nonfinite",
    "launch_function",
    "reason",
    "reduce",
    "statistics",
    "supported",
]
