"""How long does a prediction take with each method? Eager calls, and replays of a CUDA graph.

    python experiments/serving_speed.py [--model resnet26] [--images 200] [--size 32] [--json serving-speed-h200.json]

Weights are random, which takes the same time. All methods take turns in one process, and each call waits for its
predictions. A ratio compares two neighbouring calls: the method's, and TeBN's with BatchNorm and without a graph.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import torch

import medbn
from _serving import make_inputs, read_options
from medbn import cli
from medbn.bench import Place, machine_facts
from medbn.methods import Adapter

METHODS: list[tuple[str, str, dict[str, Any]]] = [
    ("tebn", "mean", {}),
    ("source", "mean", {}),
    ("tebn", "median", {}),
    ("tebn", "image_median", {}),
    ("sema", "image_median", {}),
    ("past", "image_median@0.5", {"two_pass_batches": 0}),
    ("past", "image_median@0.5", {"changes": "detect"}),
]


def main() -> None:
    options = read_options(__doc__, rounds=40)
    model, images = make_inputs(options)
    candidates = []
    for graph in (False, True) if torch.device(options.device).type == "cuda" else (False,):
        for method, estimator, method_options in METHODS:
            adapter = medbn.adapt(model, method, estimator, graph=graph, **method_options)
            for _ in range(4):  # the first calls compile, choose kernels and capture
                time_prediction(adapter, images)
            label = f"{method}, changes" if "changes" in method_options else method
            candidates.append((label, estimator, graph, adapter))
    plain = candidates[0][-1]
    machine = machine_facts(Place(device=options.device))
    rows = []
    times: list[list[float]] = [[] for _ in candidates]
    ratios: list[list[float]] = [[] for _ in candidates]
    for _ in range(options.rounds):
        for (*_, adapter), taken, ratio in zip(candidates, times, ratios, strict=True):
            before = time_prediction(plain, images)
            taken.append(time_prediction(adapter, images))
            ratio.append(taken[-1] / before)
    what = f"{options.model}, {options.images} images of {options.size} pixels"
    print(f"{machine['device']}, torch {machine['torch']}; {what}")
    print(f"{'method':15}{'estimator':18}{'graph':13}{'ms':>8}  / TeBN's with BatchNorm [quartiles]")
    for (method, estimator, graph, _), taken, ratio in zip(candidates, times, ratios, strict=True):
        low, middle, high = statistics.quantiles(ratio, n=4)
        row = {"method": method, "estimator": estimator, "graph": graph, "ms": 1e3 * statistics.median(taken)}
        rows.append({**row, "ratio": middle, "quartiles": [low, high], "seconds": taken})
        words = f"{method:15}{estimator:18}{'yes' if graph else '':13}"
        print(f"{words}{row['ms']:8.2f}  {middle:.2f} [{low:.2f}, {high:.2f}]")
    if options.json:
        options.json.write_text(json.dumps({"facts": machine, "rows": rows}, indent=1) + "\n")


def time_prediction(adapter: Adapter, images: torch.Tensor) -> float:
    """Return the seconds until the predictions of a batch are known."""
    began = time.perf_counter()
    adapter(images).argmax(1).cpu()  # which waits for a GPU
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(cli.run_program("serving_speed.py", main))
