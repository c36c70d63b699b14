"""How far can single images move a moving average? Black images between batches of digits, in seconds on a CPU.

    python experiments/single_image_poisoning.py

Eight batches of 50 digits in snow come first. Then come ten black images: one per call, one per padded call, or ten in
each of ten batches. The error is that on 150 more digits, each batch predicted from the same state. ``past`` weighs
batches by their images; sEMA, with the same average, weighs every call alike.
"""

from __future__ import annotations

import copy
import sys

import torch

import medbn
from medbn import cli, data, models
from medbn.bench import Place, machine_facts
from medbn.methods import Adapter

BLACK = 10


def main() -> None:
    cli.Parser(description=(__doc__ or "").split("\n")[0]).parse_args()
    machine = machine_facts(Place())
    model = models.get("resnet-small", weights="shipped")
    batches = list(data.load("digits", corruption="snow", severity=5).batches(50, drop_last=True))
    shape = batches[0][0].shape[1:]
    print(f"{machine['device']}, torch {machine['torch']}; wrong of 150, digits in snow")
    print(
        f"{'method':8}{'estimator':18}{'before':>8}{'after ten alone':>17}{'one of 50 valid':>17}{'among others':>14}"
    )
    for method, options in (
        ("past", {"batch_size": 50}),
        ("past", {"batch_size": 200}),
        ("sema", {"momentum": 0.05, "counted": True}),
    ):
        for estimator in ("image_median", "image_median@0.5"):
            tta = medbn.adapt(model, method, estimator, **options)
            for images, _ in batches[:8]:
                tta(images)
            alone, padded, among = (copy.deepcopy(tta) for _ in range(3))
            for number in range(BLACK):
                alone(torch.zeros(1, *shape))
                padded(torch.zeros(50, *shape), valid=torch.arange(50) == 0)
                mixed = batches[number % 8][0].clone()
                mixed[-10:] = 0.0
                among(mixed)
            counts = [count_wrong(each, batches[9:12]) for each in (tta, alone, padded, among)]
            changes = f" ({', '.join(f'{name}={value}' for name, value in options.items())})"
            columns = zip(counts, (8, 17, 17, 14), strict=True)
            print(f"{method:8}{estimator:18}" + "".join(f"{count:{width}}" for count, width in columns) + changes)


def count_wrong(tta: Adapter, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> int:
    """Return the number of wrong predictions, each batch from the same state."""
    return sum(int((copy.deepcopy(tta)(images).argmax(1) != labels).sum()) for images, labels in batches)


if __name__ == "__main__":
    sys.exit(cli.run_program("single_image_poisoning.py", main))
