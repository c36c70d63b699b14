"""The arguments of experiments that time an adapter which serves, and its model and images."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from medbn import cli, models
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
