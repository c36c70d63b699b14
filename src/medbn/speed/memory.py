"""What a layer needs beside its input, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .layer import Problem
from .settings import Settings
from .timing import TORCH, Row, paths, using


def situations(settings: Settings) -> list[dict[str, Any]]:
    """Every shape in every layout: ``peak`` where the device counts, ``kept`` where it does not."""
    kind = "peak" if settings.on_gpu else "kept"
    return [
        {"layout": layout, "shape": shape, "dtype": settings.dtype, "kind": kind}
        for layout in settings.layouts
        for shape in settings.shapes
    ]


def measure(settings: Settings, where: dict[str, Any]) -> list[Row]:
    """Bytes, BatchNorm's and each candidate's."""
    count = _peak if where["kind"] == "peak" else _kept
    problem = Problem.of(settings, where["shape"], where["layout"], "forward+backward")
    where = {**where, "activation": problem.x.numel() * problem.x.element_size()}
    base = float(count(problem, problem.batch_norm, TORCH))
    return [
        Row("memory", where, name, path, "bytes", [float(count(problem, problem.robust(name), path))], [base])
        for name in settings.robust
        for path in paths(problem.x, name, settings.reference)
    ]


def _peak(problem: Problem, norm: Callable[[], Tensor], path: str) -> int:
    """The most that was allocated during a pass forward and back, beyond what was there before it."""
    call = problem.call(norm)
    with using(path):
        call()  # what is allocated once and kept
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _kept(problem: Problem, norm: Callable[[], Tensor], path: str) -> int:
    """The output and what autograd saves for the backward pass, the input included; each storage once."""
    seen: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with using(path), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        note(norm())
    return sum(seen.values())
