"""Adapt one model in several processes, each of which has a part of every batch.

torchrun --nproc-per-node 2 examples/several_processes.py          # on CPUs by gloo, on GPUs by NCCL
"""

from __future__ import annotations

import argparse
import os
from datetime import timedelta

import torch
import torch.distributed as dist

import medbn
from medbn import data, models


def main(arguments: list[str] | None = None) -> None:
    """Predict digits of low contrast, and print the error of all processes together."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=4)
    options = parser.parse_args(arguments)

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # A process that dies or hangs is an error in the others after this time.
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()

    model = models.get("resnet-small", weights="shipped").to(device)
    tta = medbn.adapt(model, method="tent", estimator="median", group="world")
    digits = data.load("digits", corruption="contrast", severity=5)
    wrong = torch.zeros(2, device=device)
    for images, labels in digits.batches(100, limit=options.batches, device=device):
        part = slice(rank, None, size)  # parts may be of different sizes, or empty
        logits = tta(images[part])  # statistics and learning are of the whole batch
        wrong += torch.stack([(logits.argmax(1) != labels[part]).sum(), (labels[part] >= 0).sum()])

    dist.all_reduce(wrong)
    if rank == 0:
        errors, count = wrong.tolist()
        print(f"{size} processes, {count:.0f} images: error {100 * errors / count:.1f} %")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
