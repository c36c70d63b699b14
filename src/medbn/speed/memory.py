"""Measure the memory that a layer needs beside its input, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .layer import LayerProblem
from .measurement import TORCH, Measurement, paths, use_path
from .settings import Settings


def cases(settings: Settings) -> list[dict[str, Any]]:
    """Return every shape in every layout.

    The kind of memory is ``"peak"`` on a GPU, whose allocator counts, and ``"saved"`` elsewhere.
    """
    kind = "peak" if settings.on_gpu else "saved"
    return [
        {"layout": layout, "shape": shape, "dtype": settings.dtype, "kind": kind}
        for layout in settings.layouts
        for shape in settings.shapes
    ]


def measure(settings: Settings, case: dict[str, Any]) -> list[Measurement]:
    """Count BatchNorm's bytes and each candidate's."""
    count = peak_bytes if case["kind"] == "peak" else saved_bytes
    problem = LayerProblem.random(settings, case["shape"], case["layout"], "forward+backward")
    case = {**case, "activation": problem.x.numel() * problem.x.element_size()}
    batch_norm = float(count(problem, problem.batch_norm, TORCH))
    return [
        Measurement(
            "memory", case, name, path, "bytes", [float(count(problem, problem.robust_norm(name), path))], [batch_norm]
        )
        for name in settings.robust
        for path in paths(problem.x, name, settings.reference)
    ]


def peak_bytes(problem: LayerProblem, norm: Callable[[], Tensor], path: str) -> int:
    """Return the most memory allocated during a forward and backward pass, beyond what was allocated before it."""
    call = problem.in_direction(norm)
    with use_path(path):
        call()  # what is allocated once stays allocated
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def saved_bytes(problem: LayerProblem, norm: Callable[[], Tensor], path: str) -> int:
    """Return the size of the output and of all tensors saved for backward, the input included, each storage once."""
    sizes: dict[int, int] = {}

    def add_storage(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with use_path(path), torch.autograd.graph.saved_tensors_hooks(add_storage, lambda tensor: tensor):
        add_storage(norm())
    return sum(sizes.values())
