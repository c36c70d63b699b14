"""What happens to a stream while somebody attacks it, with BatchNorm, MedBN and our default? On digits.

    python experiments/attacked_stream.py --json results/attacked-stream-cpu.json
    python experiments/attacked_stream.py --from results/attacked-stream-cpu.json --draw docs/images

Every image of a batch of 200 digits has one of the fifteen corruptions, drawn at random; frost is a drawn texture. The
last 40 images of batches 7 to 18 are crafted so that the other 160 are misclassified. The poison stays in what adapts.
Each stream runs once per gradient of the attacker, and the worst is shown in every batch. Takes about ten minutes on
a CPU. ``--draw`` writes the picture of the README, light and dark.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import medbn
from _stream_figure import StreamFigure
from medbn import attacks, cli, data, models
from medbn.bench import Place, deterministic, machine_facts
from medbn.data import corruptions
from medbn.methods import predict_logits

if TYPE_CHECKING:
    from medbn.analysis import Numbers, Theme

ROWS: list[tuple[str, str, dict[str, Any]]] = [
    ("no adaptation", "none", {"method": "source"}),
    ("BatchNorm (TeBN)", "mean", {"method": "tebn", "estimator": "mean"}),
    ("MedBN (TeBN)", "median", {"method": "tebn", "estimator": "median"}),
    ("medbn.adapt(model)", "image_median@0.5", {}),
]
"""What is compared: the name in the figure, the estimator whose colour it has, and the arguments of ``adapt``."""
GRADIENTS = ("exact", "straight_through", "smooth")
FIRST, LAST = 7, 18
MALICIOUS = slice(160, 200)


def main() -> None:
    parser = cli.Parser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--batches", type=cli.positive_int, default=24)
    parser.add_argument("--steps", type=cli.positive_int, default=40, help="of 2.5/255 each")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers")
    parser.add_argument("--from", type=Path, metavar="FILE", dest="source", help="read the numbers, measure nothing")
    parser.add_argument("--draw", type=Path, metavar="FOLDER", help="write attacked-stream-light.svg and -dark.svg")
    options = parser.parse_args()
    if options.source:
        record = json.loads(options.source.read_text())
    else:
        place = Place(device="cpu", threads=1)
        with deterministic(place):
            record = {"facts": machine_facts(place), "rows": measure(options)}
    print(f"{record['facts']['device']}, torch {record['facts']['torch']}; error in per cent")
    print(f"{'':20}{'without attack':>16}{'under attack':>14}{'worst batch':>13}")
    for row in worst_of_gradients(record["rows"]):
        attacked = [error for error, on in zip(row["errors"], row["attacked"], strict=True) if on]
        clean = row["clean"][FIRST - 1 : LAST]
        print(f"{row['name']:20}{mean(clean):16.1f}{mean(attacked):14.1f}{max(attacked, default=0.0):13.1f}")
    if options.json:
        options.json.write_text(json.dumps(record) + "\n")
    if options.draw:
        FIGURE.write(worst_of_gradients(record["rows"]), options.draw)


def mean(values: list[float]) -> float:
    """Return the mean; 0 of none."""
    return sum(values) / max(len(values), 1)


def mixed_batches(count: int) -> list[tuple[Tensor, Tensor]]:
    """Return batches of digits, each image of which has a corruption of its own."""
    whole = [
        next(iter(data.load("digits", corruption=name, severity=5, frost="synthetic").batches(10_000)))
        for name in corruptions.NAMES
    ]
    images, labels = torch.stack([images for images, _ in whole]), whole[0][1]
    generator = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(count):
        which = torch.randint(len(labels), (200,), generator=generator)
        corrupted = torch.randint(len(whole), (200,), generator=generator)
        batches.append((images[corrupted, which], labels[which]))
    return batches


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the errors of every stream in per cent, without an attack and with one by each gradient."""
    model = models.get("resnet-small", weights="shipped")
    batches = mixed_batches(options.batches)
    rows = []
    for name, style, arguments in ROWS:
        # A mean has one gradient, and an image that is predicted alone cannot be attacked through others.
        gradients = {"none": (None,), "mean": (None, "exact")}.get(style, (None, *GRADIENTS))
        for gradient in gradients:
            errors = serve(medbn.adapt(model, **arguments), batches, gradient, options.steps)
            rows.append({"name": name, "gradient": gradient, "errors": errors})
            print(f"{name}, {gradient or 'no attack'}: {mean(errors):.1f} %", file=sys.stderr, flush=True)
    return rows


def serve(
    adapter: medbn.Adapter, batches: list[tuple[Tensor, Tensor]], gradient: str | None, steps: int
) -> list[float]:
    """Serve a stream and return the error of the benign images of each batch, in per cent."""
    attack = attacks.DIA(attacks.Indiscriminate(), steps=steps, step_size=2.5 / 255, gradient=gradient or "exact")
    errors = []
    for number, (images, labels) in enumerate(batches, start=1):
        if gradient and FIRST <= number <= LAST:
            images = attack(adapter, images, labels, malicious=MALICIOUS)
        wrong = predict_logits(adapter, images).argmax(dim=1) != labels
        wrong[MALICIOUS] = False
        errors.append(100 * int(wrong.sum()) / (len(labels) - len(range(*MALICIOUS.indices(len(labels))))))
    return errors


def worst_of_gradients(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for each defence its errors without attack, and the worst over all gradients in each batch."""
    worst = []
    for name, style, _ in ROWS:
        own = [row for row in rows if row["name"] == name]
        clean = next(row["errors"] for row in own if row["gradient"] is None)
        attacked = [row["errors"] for row in own if row["gradient"]] or [clean]
        errors = [max(column) for column in zip(*attacked, strict=True)]
        on = [FIRST <= number <= LAST for number in range(1, len(errors) + 1)]
        worst.append({"name": name, "style": style, "clean": clean, "errors": errors, "attacked": on})
    return worst


def shade(axis: Any, numbers: Numbers, theme: Theme) -> None:
    """Shade the attacked batches."""
    axis.axvspan(FIRST - 0.5, LAST + 0.5, color=theme.malicious, alpha=0.12, linewidth=0)
    axis.annotate("40 of 200 images are crafted", (FIRST - 0.3, 1.02), xycoords=("data", "axes fraction"), fontsize=7)


FIGURE = StreamFigure(
    name="attacked-stream",
    title="a stream under attack",
    shade=shade,
    batches="batch",
    errors="error of the other images (%)",
)


if __name__ == "__main__":
    sys.exit(cli.run_program("attacked_stream.py", main))
