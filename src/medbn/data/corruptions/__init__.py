"""The fifteen corruptions of CIFAR-10-C and ImageNet-C (Hendrycks & Dietterich, ICLR 2019), at any image size.

Needs torch, numpy and Pillow. The constants are the published ones at 32 px and at 224 px, and are interpolated between
(``Corruption.level``). The published images were rounded down to bytes, and so are these.
"""

from importlib import import_module as _import_module

from .apply import SEVERITIES, check, check_severity, corrupt, corrupt_labels
from .base import Corruption, ImageRandom, Level, available, get, register, unregister
from .frost import frost_fingerprint

GROUPS = ("noise", "blur", "weather", "digital")
"""The benchmark's groups, one file each, in the order of the paper's tables."""

for _group in GROUPS:
    _import_module(f"{__name__}.{_group}")

NAMES = tuple(available())
"""The fifteen corruptions of the benchmark, in the order of the paper's tables."""
VERSION = 1
"""Increased when the same seed gives other images for all corruptions; for one of them, its own ``version`` is."""

__all__ = [
    "GROUPS",
    "NAMES",
    "SEVERITIES",
    "VERSION",
    "Corruption",
    "ImageRandom",
    "Level",
    "available",
    "check",
    "check_severity",
    "corrupt",
    "corrupt_labels",
    "frost_fingerprint",
    "get",
    "register",
    "unregister",
]
