"""The C kernels: float32 on a CPU, contiguous or channels last, with the gradient in closed form.

``kernels.triton`` has the same front door, and ``kernels.dispatch`` chooses between the two. ``kernels.smooth`` builds
its backward pass from ``reduce``, ``combine`` and ``among_finite``.
"""

from .binding import available, combine, instruction_sets, reason, reduce
from .orchestration import KERNELS, among_finite, backward, dense, forward, statistics, supported

__all__ = [
    "KERNELS",
    "among_finite",
    "available",
    "backward",
    "combine",
    "dense",
    "forward",
    "instruction_sets",
    "reason",
    "reduce",
    "statistics",
    "supported",
]
