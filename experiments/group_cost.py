"""What do statistics over a process group cost? Rounds, bytes and time per layer, beside SyncBatchNorm's formula.

    python experiments/group_cost.py --json group-cost-cpu.json

One layer normalises a batch that 1, 2 and 4 gloo processes divide. ``SyncBatchNorm's formula`` is what torch computes
on GPUs: every process sends the mean and the inverse deviation of its part and the number of its values, and backward
two sums per channel. torch's own layer does not run on CPUs, so the formula is written here, in plain torch.

A *round* is one collective, for which all processes wait. *Bytes* are what one process sends in its messages. Times are
medians over rounds in which all candidates take turns.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.autograd import Function

import medbn
from medbn import cli
from medbn.bench import Place, machine_facts
from medbn.distributed import Group

ESTIMATORS = ("mean", "median", "mad", "image_median")
FORMULA = "SyncBatchNorm's formula"


class CountingGroup(Group):
    """A group that counts its rounds and the bytes that it sends."""

    rounds = sent = 0

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Count, and gather."""
        self.rounds, self.sent = self.rounds + 1, self.sent + tensor.numel() * tensor.element_size()
        return super().all_gather(tensor)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Count, and reduce."""
        self.rounds, self.sent = self.rounds + 1, self.sent + tensor.numel() * tensor.element_size()
        return super().all_reduce(tensor)


class Formula(Function):
    """Mean and variance of all parts, and their gradient, as SyncBatchNorm computes them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: CountingGroup, eps: float) -> Tensor:
        """Return the normalised part."""
        dims, shape = (0, 2, 3), (1, -1, 1, 1)
        count = torch.tensor([float(x.numel() // x.shape[1])])
        mean = x.mean(dims)
        inverse = (x.var(dims, unbiased=False) + eps).rsqrt()
        received = group.all_gather(torch.cat([mean, inverse, count]))
        means, inverses, counts = received[:, : len(mean)], received[:, len(mean) : -1], received[:, -1:]
        total = counts.sum()
        mean = (counts * means).sum(0) / total
        variance = (counts * (inverses**-2 - eps + (means - mean) ** 2)).sum(0) / total
        inverse = (variance + eps).rsqrt()
        y = (x - mean.view(shape)) * inverse.view(shape)
        ctx.save_for_backward(y, inverse, total)
        ctx.group = group
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Return the gradient of the part."""
        (y, inverse, total), (g,) = ctx.saved_tensors, grads
        sums = ctx.group.all_reduce(torch.stack([g.sum((0, 2, 3)), (g * y).sum((0, 2, 3))])) / total
        one, two = (s.view(1, -1, 1, 1) for s in sums)
        return inverse.view(1, -1, 1, 1) * (g - one - y * two), None, None


class FormulaLayer(nn.Module):
    """A layer without affine map that uses the formula."""

    def __init__(self, group: CountingGroup) -> None:
        super().__init__()
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised part."""
        return Formula.apply(x, self.group, 1e-5)  # type: ignore[no-any-return, no-untyped-call]


def candidates(channels: int) -> dict[str, tuple[nn.Module, CountingGroup]]:
    """Return the layers to compare, each with its group."""
    found: dict[str, tuple[nn.Module, CountingGroup]] = {}
    group = CountingGroup()
    found[FORMULA] = (FormulaLayer(group), group)
    for name in ESTIMATORS:
        layer = medbn.RobustBatchNorm2d(channels, estimator=name, affine=False).eval()
        group = CountingGroup()
        layer._group = group
        found[name] = (layer, group)
    return found


def measure(rank: int, processes: int, store: str, shape: tuple[int, ...], rounds: int, queue: Any) -> None:
    """Measure all candidates in one of several processes; the first one sends the result."""
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    timeout = timedelta(seconds=300)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=processes, timeout=timeout)
    x = torch.randn(shape[0] // processes, *shape[1:])
    weights = torch.randn_like(x)
    layers = candidates(shape[1])
    times: dict[tuple[str, str], list[float]] = {}
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    outputs: dict[str, tuple[Tensor, Tensor]] = {}
    for number in range(rounds + 2):
        for name, (layer, group) in layers.items():
            part = x.clone().requires_grad_()
            for direction in ("forward", "backward"):
                dist.barrier()
                rounds_before, sent_before, began = group.rounds, group.sent, time.perf_counter()
                if direction == "forward":
                    y = layer(part)
                else:
                    y.backward(weights)
                taken = time.perf_counter() - began
                counts[name, direction] = group.rounds - rounds_before, group.sent - sent_before
                if number >= 2:
                    times.setdefault((name, direction), []).append(taken)
            assert part.grad is not None
            outputs[name] = y.detach(), part.grad
    for mine, theirs in zip(outputs["mean"], outputs[FORMULA], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)  # the formula is right
    if rank == 0:
        rows = []
        for (name, direction), seconds in times.items():
            sent = dict(zip(("rounds", "bytes"), counts[name, direction], strict=True))
            low, middle, high = (1000 * q for q in statistics.quantiles(seconds, n=4))
            row = {"layer": name, "direction": direction, "processes": processes, **sent}
            rows.append({**row, "ms": middle, "ms_quartiles": [low, high]})
        queue.put(rows)
    dist.destroy_process_group()


def main() -> None:
    parser = cli.Parser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--shape", default="192x64x16x16", help="of the whole batch's activation (default: %(default)s)"
    )
    parser.add_argument("--processes", type=cli.positive_int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=cli.positive_int, default=20)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    shape = tuple(int(size) for size in options.shape.split("x"))
    if len(shape) != 4 or any(shape[0] % processes for processes in options.processes):
        raise ValueError("the shape is BxCxHxW, and the processes divide B.")
    machine, rows = machine_facts(Place()), []
    print(
        f"{machine['device']}, torch {machine['torch']}; a layer with {options.shape} values, one thread per process\n"
    )
    for processes in options.processes:
        with tempfile.TemporaryDirectory() as folder:
            context = mp.get_context("spawn")
            queue = context.SimpleQueue()
            arguments = (processes, str(Path(folder) / "store"), shape, options.rounds, queue)
            mp.spawn(measure, arguments, nprocs=processes)
            rows += queue.get()
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "shape": shape, "rows": rows}, indent=1) + "\n")
    for direction in ("forward", "backward"):
        print(f"{direction:24}" + "".join(f"{n} process{'es' * (n > 1)}".rjust(34) for n in options.processes))
        for name in dict.fromkeys(row["layer"] for row in rows):
            found = [row for row in rows if (row["layer"], row["direction"]) == (name, direction)]
            cells = (f"{row['rounds']} rounds {row['bytes']:9,} B {row['ms']:7.1f} ms" for row in found)
            print(f"{name:24}" + "".join(cell.rjust(34) for cell in cells))
        print()


if __name__ == "__main__":
    sys.exit(cli.run_program("group_cost.py", main))
