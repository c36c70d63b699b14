"""What experiments share that time an adapter which serves: arguments, model and images, and taking turns."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from medbn import cli, models
from medbn.bench import Place, machine_facts
from medbn.methods import Adapter


def read_options(doc: str | None, rounds: int, profile: str | None = None) -> argparse.Namespace:
    """Return the arguments of the command line.

    Args:
        doc: the docstring of the experiment.
        rounds: the default number of rounds.
        profile: what ``--profile`` does; None for an experiment without it.
    """
    parser = cli.Parser(description=(doc or "").split("\n")[0])
    parser.add_argument("--model", default="resnet26", help="a name from medbn.models.available()")
    parser.add_argument("--images", type=cli.positive_int, default=200, help="in a batch")
    parser.add_argument("--size", type=cli.positive_int, default=32, help="of an image, in pixels")
    parser.add_argument("--rounds", type=cli.positive_int, default=rounds)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, metavar="FILE")
    if profile is not None:
        parser.add_argument("--profile", action="store_true", help=profile)
    return parser.parse_args()


def make_inputs(options: argparse.Namespace) -> tuple[nn.Module, Tensor]:
    """Return the model, with random weights, and a batch of random images."""
    torch.manual_seed(0)
    model = models.get(options.model, classes=10, channels=3).to(options.device).eval()
    return model, torch.rand(options.images, 3, options.size, options.size, device=options.device)


def time_call(adapter: Adapter, images: Tensor) -> float:
    """Return the seconds that one call takes: computed by this process on a CPU, until the GPU is done on one."""
    if images.is_cuda:
        torch.cuda.synchronize()
        start = time.perf_counter()
        adapter(images)
        torch.cuda.synchronize()
        return time.perf_counter() - start
    start = time.process_time()
    adapter(images)
    return time.process_time() - start


@dataclass
class Turns:
    """The times of two adapters that have served the same images in turns."""

    seconds: list[float]
    """Of the first one."""
    ratios: list[float]
    """Of each call of the other to the neighbouring call of the first."""

    @classmethod
    def of(cls, plain: Adapter, other: Adapter, images: Tensor, rounds: int, warm_up: int) -> Turns:
        """Let two adapters serve the images in alternating order; the first rounds, the warm-up, do not count."""
        turns = cls([], [])
        for number in range(rounds + warm_up):
            order = (plain, other) if number % 2 else (other, plain)
            taken = {adapter is other: time_call(adapter, images) for adapter in order}
            if number >= warm_up:
                turns.seconds.append(taken[False])
                turns.ratios.append(taken[True] / taken[False])
        return turns

    def record(self) -> dict[str, Any]:
        """Return the milliseconds of the first one, and all ratios."""
        return {"ms": 1000 * statistics.median(self.seconds), "ratios": self.ratios}

    def describe(self) -> str:
        """Return the time of the first one, and the ratio with its quartiles."""
        low, middle, high = statistics.quantiles(self.ratios, n=4)
        ms = 1000 * statistics.median(self.seconds)
        return f"{ms:8.1f} ms  ratio {middle:.3f} (quartiles {low:.3f} to {high:.3f})"


def print_place(options: argparse.Namespace) -> dict[str, Any]:
    """Print what is measured where, and return facts of the machine."""
    facts = machine_facts(Place(device=options.device))
    print(f"{facts['device']}, torch {facts['torch']}; {options.model}, {options.images} images of {options.size} px")
    return facts


def write_record(options: argparse.Namespace, facts: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Write what was measured to the file of ``--json``, if there is one."""
    if options.json:
        record = {"facts": facts, "settings": {**vars(options), "json": None}, "rows": rows}
        options.json.write_text(json.dumps(record) + "\n", encoding="utf-8")
