"""Is a result of the GPU an artefact of our kernels, of TF32 or of CUDA graphs? One attacked batch without any of them.

    python experiments/plain_torch_check.py [--corruption jpeg_compression] [--batch 1] [--lower]

The attack is targeted and exact, on TeBN, with ``image_median`` written in a few lines of torch, on a CPU. The batch is
one of CIFAR-10-C in the order of the file, and the result should be that of a GPU. Ten minutes on two cores.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor

import medbn
from _cifar import resnet26
from medbn import cli, data


def main() -> None:
    parser = cli.Parser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--corruption", default="jpeg_compression")
    parser.add_argument("--batch", type=cli.natural_int, default=1, help="its number, from 0 (default: 1)")
    parser.add_argument("--lower", action="store_true", help="the lower of two middle values, not their average")
    parser.add_argument("--root", type=Path, help="the data folder")
    options = parser.parse_args()

    def median_of(values: Tensor) -> Tensor:
        return values.median(dim=0).values if options.lower else values.quantile(0.5, dim=0)

    def plain(x: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
        means, within = x.mean((2, 3)), x.var((2, 3), unbiased=False)
        centre = median_of(means)
        return centre, median_of(within) + (1.4826 * median_of((means - centre).abs())).square()

    medbn.estimators.register("plain", plain)
    adapter = medbn.adapt(resnet26(options.root), "tebn", "plain")
    stream = data.load("cifar10-c", corruption=options.corruption, severity=5, root=options.root)
    if options.batch >= len(stream) // 200:
        raise ValueError(f"--batch goes from 0 to {len(stream) // 200 - 1}, not to {options.batch}.")
    images, labels = next(stream.batches(200, first=options.batch, limit=1))
    objective, benign = medbn.attacks.Targeted(), torch.arange(200) < 160
    poisoned = medbn.attacks.DIA(objective)(adapter, images, labels, slice(160, 200))
    with torch.no_grad():
        logits = adapter(poisoned)
    hit = bool(objective.harm(logits, labels, benign))
    print(f"{options.corruption}, batch {options.batch}: {'hit' if hit else 'missed'},"
          f" cross-entropy with the target class {-objective.value(logits, labels, benign).item():.2g}")  # fmt: skip


if __name__ == "__main__":
    sys.exit(cli.run_program("plain_torch_check.py", main))
