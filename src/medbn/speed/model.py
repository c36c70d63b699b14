"""Time batches through any model, as users call it: eager, and replayed as CUDA graphs; and where the time goes."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from .. import models
from ..methods import adapt, options
from .measurement import TORCH, Candidate, Measurement, paths
from .settings import DTYPES, LAYOUTS, Settings
from .timing import Call, compare, synchronizer

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "tebn": ("", {}),
    "tent": ("", {"lr": 1e-12}),
    "past": ("@0.5", {"two_pass_batches": 0}),
}
"""What follows the name of an estimator, and the method's options. TENT's steps are too small to change the model."""
GRAPH = "graph"
"""The path of an adapter that replays its forward pass from a CUDA graph."""


def cases(settings: Settings) -> list[dict[str, Any]]:
    """Return TeBN, TENT and ``past`` on each model that was asked for, in each layout; nothing if none was."""
    sizes = {"batch": settings.batch, "pixels": settings.pixels, "dtype": settings.dtype}
    return [
        {"method": method, "model": model, **sizes, "layout": layout}
        for model in settings.models
        for layout in settings.model_layouts
        for method in METHODS
    ]


def measure(settings: Settings, case: dict[str, Any]) -> list[Measurement]:
    """Time a batch with BatchNorm and with each robust estimator; on a GPU, also how long the device works."""
    device, dtype = torch.device(settings.device), DTYPES[settings.dtype]
    suffix, method_options = METHODS[case["method"]]
    replays = "graph" in options(case["method"])
    torch.manual_seed(0)
    form = LAYOUTS[case["layout"]]
    model = models.get(case["model"]).to(device).to(memory_format=form)  # type: ignore[call-overload]
    images = torch.rand(case["batch"], 3, case["pixels"], case["pixels"], device=device).to(memory_format=form)

    def prepare(estimator: str, graph: bool = False) -> Call:
        more: dict[str, Any] = {**method_options, **({"graph": graph} if replays else {})}
        adapter = adapt(model, case["method"], estimator + suffix, **more)

        def call() -> None:
            with torch.autocast(device.type, dtype, enabled=settings.dtype != "float32"):
                adapter(images)

        if graph:
            for _ in range(3):  # the second call captures
                call()
        return call

    batch_norm = prepare("mean")
    probe = torch.zeros(2, 2, 2, 2, device=device, dtype=dtype)
    candidates = [
        Candidate(name, path, prepare(name))
        for name in settings.robust
        for path in paths(probe, name, settings.reference)
    ]
    if settings.on_gpu and replays:
        candidates += [Candidate(name, GRAPH, prepare(name, True)) for name in ("mean", *settings.robust)]
    rows = compare("model", case, batch_norm, candidates, lambda path: settings.rounds_for("model", path), str(device))
    if settings.on_gpu:
        rows += _device_times(case, Candidate("mean", TORCH, batch_norm), candidates)
    return rows


def _device_times(case: dict[str, Any], batch_norm: Candidate, candidates: list[Candidate]) -> list[Measurement]:
    """Return how long the device works for a batch, and how many kernels it runs."""
    base = count_kernels(batch_norm.call)
    rows = []
    for candidate in candidates:
        if candidate.path == "reference":
            continue
        found = count_kernels(candidate.call)
        for clock, value, beside in zip(("device", "kernels"), found, base, strict=True):
            row = Measurement("model", dict(case), candidate.estimator, candidate.path, clock, [value], [beside])
            rows.append(row)
    return rows


def count_kernels(call: Call) -> tuple[float, float]:
    """Return the seconds that a GPU works for a call, and how many kernels, copies and fills that are."""
    wait = synchronizer("cuda")
    wait()
    with warnings.catch_warnings():  # that events of earlier cycles are cleared; there are no cycles
        warnings.filterwarnings("ignore", message=".*events at the end of each cycle")
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            call()
            wait()
        events = [event for event in profile.events() if "CUDA" in str(event.device_type)]
    return sum(event.time_range.elapsed_us() for event in events) / 1e6, float(len(events))
