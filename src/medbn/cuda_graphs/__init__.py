"""Capture work on a GPU once as a CUDA graph and replay it with a single launch, to the same bits.

Small images are processed faster than Python launches the kernels for them. ``capture`` runs a function once and
``Graph.replay`` launches all its kernels again. ``GraphCache`` keeps the graphs of one model and decides when one may
be replayed; its docstring states that rule. Methods use it for their forward pass, attacks for their steps.
"""

from .cache import CAPACITY, SWITCH, GraphCache, find_obstacle, settings, switched_off
from .capture import CaptureError, Graph, ObstacleError, capture, warm_up
from .guard import Guard, form

__all__ = [
    "CAPACITY",
    "SWITCH",
    "CaptureError",
    "Graph",
    "GraphCache",
    "Guard",
    "ObstacleError",
    "capture",
    "find_obstacle",
    "form",
    "settings",
    "switched_off",
    "warm_up",
]
