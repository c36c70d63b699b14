"""Time the native kernels, put together as a MedBN layer, against BatchNorm.

    python benchmarks/native.py [--rounds 15] [--threads 2]

Forward is ``median_statistics`` and ``normalise``, backward ``reduce`` and ``combine``. The candidates take
turns, and each ratio is of the shortest times: what else the machine does only ever adds, and to torch's threads, which
wait for each other, much more than to ours.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from medbn.kernels import native

SMALL = [(200, 64, 32, 32), (200, 128, 16, 16), (200, 256, 8, 8), (200, 512, 4, 4)]
LARGE = [
    (16, 64, 112, 112),
    (16, 64, 56, 56),
    (16, 256, 56, 56),
    (16, 512, 28, 28),
    (16, 1024, 14, 14),
    (16, 2048, 7, 7),
]


def forward(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, native.MedianStatistics, Tensor]:
    s = native.median_statistics(x)
    inverse_std = torch.rsqrt(s.variance + 1e-5)
    return native.normalise(x, s.centre, weight * inverse_std, bias), s, inverse_std


def backward(g: Tensor, x: Tensor, weight: Tensor, s: native.MedianStatistics, inverse_std: Tensor) -> Tensor:
    sum_g, sum_gx = native.reduce(g, x, s.centre)
    scale = weight * inverse_std
    slope = scale * inverse_std * inverse_std * sum_gx / (x.numel() // x.shape[1])
    dx = native.combine(g, x, s.centre, scale, -slope, torch.zeros_like(scale))
    size = x.numel() // (x.shape[0] * x.shape[1])
    planes = dx.view(x.shape[0], x.shape[1], size) if dx.is_contiguous() else dx.flatten(2)
    at = (s.index // size, torch.arange(x.shape[1]), s.index % size)
    planes[at] += (slope * s.deviation - scale * sum_g).float()
    return dx


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def ratios(shape: tuple[int, ...], last: bool, rounds: int) -> tuple[float, float, float, float]:
    """Ours over BatchNorm's, forward and both ways, then BatchNorm's own milliseconds."""
    torch.manual_seed(0)
    form = torch.channels_last if last else torch.contiguous_format
    x, g = (torch.randn(shape).contiguous(memory_format=form) for _ in range(2))
    weight, bias = torch.rand(shape[1]) + 0.5, torch.randn(shape[1])
    leaf, w, b = (
        x.clone(memory_format=torch.preserve_format).requires_grad_(),
        *(t.clone().requires_grad_() for t in (weight, bias)),
    )

    def ours() -> Tensor:
        _, s, inverse_std = forward(x, weight, bias)
        return backward(g, x, weight, s, inverse_std)

    def theirs() -> object:
        return torch.autograd.grad(F.batch_norm(leaf, None, None, w, b, True), (leaf, w, b), g)

    calls = [
        lambda: forward(x, weight, bias),
        lambda: F.batch_norm(x, None, None, weight, bias, True),
        ours,
        theirs,
    ]
    for call in calls:
        call()
    taken = [[seconds(call) for call in calls] for _ in range(rounds)]
    mine, base, mine_both, base_both = (min(times) for times in zip(*taken, strict=True))
    return mine / base, mine_both / base_both, 1e3 * base, 1e3 * base_both


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if not native.available():
        raise SystemExit(native.reason())
    print(f"{torch.get_num_threads()} threads, {native.instruction_sets()[-1]}")
    for last in (False, True):
        print(f"\n{'channels_last' if last else 'NCHW':24} forward  both  (BatchNorm ms: forward, both)")
        found = []
        for shape in SMALL + LARGE:
            found.append(ratios(shape, last, arguments.rounds))
            print(
                f"{shape!s:24} {found[-1][0]:7.2f} {found[-1][1]:5.2f}  ({found[-1][2]:.2f}, {found[-1][3]:.2f})",
                flush=True,
            )
        for name, reduction in (
            ("geometric mean", lambda v: math.exp(statistics.mean(map(math.log, v)))),
            ("worst", max),
        ):
            print(f"{name:24} {reduction([f[0] for f in found]):7.2f} {reduction([f[1] for f in found]):5.2f}")


if __name__ == "__main__":
    main()
