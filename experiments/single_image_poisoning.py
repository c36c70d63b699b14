"""How far can single images move a moving average? Black images and checkerboards between batches of digits.

    python experiments/single_image_poisoning.py

Eight batches of 50 digits in snow come first, then poison; then the error is measured on 150 more digits, each batch
predicted from the same state. First table: ten black images, one per call, one per padded call, or ten in each of ten
batches. ``past`` weighs batches by their images; sEMA, with the same average, weighs every call alike. Second table:
1,000 checkerboards in one call, the same followed by 20 clean batches, 200 checkerboards in a call each, and the same
with four digits, in a call each, after every checkerboard. Takes a minute on a CPU.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable

import torch

import medbn
from medbn import cli, data, models
from medbn.bench import Place, machine_facts
from medbn.methods import Adapter

BLACK = 10
Batches = list[tuple[torch.Tensor, torch.Tensor]]
Poison = Callable[[Adapter, Batches], None]


def main() -> None:
    cli.Parser(description=(__doc__ or "").split("\n")[0]).parse_args()
    machine = machine_facts(Place())
    model = models.get("resnet-small", weights="shipped")
    batches = list(data.load("digits", corruption="snow", severity=5).batches(50, drop_last=True))
    print(f"{machine['device']}, torch {machine['torch']}; wrong of 150, digits in snow")
    tables: tuple[tuple[dict[str, Poison], tuple[str, ...]], ...] = (
        (
            {"ten alone": black_alone, "one of 50 valid": black_padded, "among others": black_among_others},
            ("image_median", "image_median@0.5"),
        ),
        (
            {
                "1,000 in a call": checkerboards_at_once,
                "20 batches later": checkerboards_then_clean,
                "200 calls": checkerboards_alone,
                "among digits": checkerboards_among_others,
            },
            ("mean", "image_median", "image_median@0.5"),
        ),
    )
    for poisons, names in tables:
        print(f"{'method':8}{'estimator':18}{'before':>8}" + "".join(f"{name:>18}" for name in poisons))
        for method, options in (
            ("past", {"batch_size": 50}),
            ("past", {"batch_size": 200}),
            ("past", {"batch_size": 200, "min_images": 1}),
            ("sema", {"momentum": 0.05, "counted": True}),
        ):
            for estimator in names:
                tta = medbn.adapt(model, method, estimator, **options)
                for images, _ in batches[:8]:
                    tta(images)
                counts = [count_wrong(tta, batches[9:12])]
                for poison in poisons.values():
                    poisoned = copy.deepcopy(tta)
                    poison(poisoned, batches)
                    counts.append(count_wrong(poisoned, batches[9:12]))
                changes = f" ({', '.join(f'{name}={value}' for name, value in options.items())})"
                columns = zip(counts, (8, *[18] * len(poisons)), strict=True)
                line = f"{method:8}{estimator:18}" + "".join(f"{count:{width}}" for count, width in columns) + changes
                print(line, flush=True)


def black_alone(tta: Adapter, batches: Batches) -> None:
    """Send one black image in each call."""
    for _ in range(BLACK):
        tta(torch.zeros_like(batches[0][0][:1]))


def black_padded(tta: Adapter, batches: Batches) -> None:
    """Send one black image and 49 of padding in each call."""
    for _ in range(BLACK):
        tta(torch.zeros_like(batches[0][0]), valid=torch.arange(50) == 0)


def black_among_others(tta: Adapter, batches: Batches) -> None:
    """Replace ten images of each batch by black ones."""
    for number in range(BLACK):
        mixed = batches[number % 8][0].clone()
        mixed[-10:] = 0.0
        tta(mixed)


def checkerboards(count: int, like: torch.Tensor) -> torch.Tensor:
    """Return black and white checkerboards of single pixels."""
    height, width = like.shape[-2:]
    board = (torch.arange(height).view(-1, 1) + torch.arange(width)) % 2
    return board.to(like.dtype).expand(count, *like.shape[1:]).clone()


def checkerboards_at_once(tta: Adapter, batches: Batches) -> None:
    """Send 1,000 checkerboards in one call."""
    tta(checkerboards(1000, batches[0][0]))


def checkerboards_then_clean(tta: Adapter, batches: Batches) -> None:
    """Send 1,000 checkerboards in one call, then 20 batches without poison."""
    checkerboards_at_once(tta, batches)
    for number in range(20):
        tta(batches[number % 8][0])


def checkerboards_alone(tta: Adapter, batches: Batches) -> None:
    """Send one checkerboard in each of 200 calls."""
    for _ in range(200):
        tta(checkerboards(1, batches[0][0]))


def checkerboards_among_others(tta: Adapter, batches: Batches) -> None:
    """Send 200 checkerboards and 800 digits, one image in each call."""
    digits = torch.cat([images for images, _ in batches[:8]])
    for number in range(200):
        tta(checkerboards(1, batches[0][0]))
        for position in range(4):
            tta(digits[(4 * number + position) % len(digits)][None])


def count_wrong(tta: Adapter, batches: Batches) -> int:
    """Return the number of wrong predictions, each batch from the same state."""
    return sum(int((copy.deepcopy(tta)(images).argmax(1) != labels).sum()) for images, labels in batches)


if __name__ == "__main__":
    sys.exit(cli.run_program("single_image_poisoning.py", main))
