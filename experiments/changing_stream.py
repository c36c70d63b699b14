"""What happens to a stream that changes while somebody attacks it, with and without detection of changes? On digits.

    python experiments/changing_stream.py --json results/changing-stream-cpu.json
    python experiments/changing_stream.py --from results/changing-stream-cpu.json --draw docs/images

Batches of 100 digits are clear, bright, and clear and bright again. In four batches the last 20 images are crafted so
that the other 80 are misclassified; the poison stays in what adapts. Twice a whole batch is the attacker's
checkerboards. Takes a minute or two on a CPU. ``--draw`` writes the picture of docs/results/changes.md, light and dark.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import medbn
from _stream_figure import StreamFigure
from medbn import attacks, cli, data, models
from medbn.bench import Place, deterministic, machine_facts
from medbn.methods import predict_logits

if TYPE_CHECKING:
    from medbn.analysis import Numbers, Theme

SIZE, MALICIOUS = 100, 20
OURS = {"method": "past", "estimator": "image_median@0.5", "batch_size": SIZE}
ROWS: list[tuple[str, str, dict[str, Any]]] = [
    ("no adaptation", "none", {"method": "source"}),
    ("BatchNorm (TeBN)", "mean", {"method": "tebn", "estimator": "mean"}),
    ("past", "median", {**OURS, "changes": None}),
    ('past, changes="detect"', "image_median@0.5", {**OURS, "changes": "detect"}),
]
"""What is compared: the name in the figure, the estimator whose colour it has, and the arguments of ``adapt``."""
STREAM = (
    ("clear", 4, "none"),
    ("brightness", 3, "none"),
    ("brightness", 2, "crafted"),
    ("brightness", 1, "owned"),
    ("brightness", 2, "none"),
    ("clear", 2, "none"),
    ("clear", 1, "owned"),
    ("clear", 2, "none"),
    ("clear", 2, "crafted"),
    ("clear", 1, "none"),
    ("brightness", 3, "none"),
)
"""Which images come, how many batches of them, and what the attacker does."""


def main() -> None:
    parser = cli.Parser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=cli.positive_int, default=40, help="of 2.5/255 each")
    parser.add_argument("--batches", type=cli.positive_int, help="serve that many, at least 11; default: all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers")
    parser.add_argument("--from", type=Path, metavar="FILE", dest="source", help="read the numbers, measure nothing")
    parser.add_argument("--draw", type=Path, metavar="FOLDER", help="write changing-stream-light.svg and -dark.svg")
    options = parser.parse_args()
    if options.source:
        record = json.loads(options.source.read_text())
    else:
        place = Place(device="cpu", threads=1)
        with deterministic(place):
            record = {"facts": machine_facts(place), "rows": [measure(row, options) for row in ROWS]}
    print(f"{record['facts']['device']}, torch {record['facts']['torch']}; error of benign images in per cent")
    print(f"{'':26}{'no attack':>12}{'first after a change':>22}{'20 % crafted':>14}{'after owned batches':>21}")
    for row in record["rows"]:
        numbers = "".join(f"{mean(select(row['errors'], kind)):>{width}.1f}" for kind, width in COLUMNS.items())
        print(f"{row['name']:26}{numbers}")
    if options.json:
        options.json.write_text(json.dumps(record) + "\n")
    if options.draw:
        FIGURE.write(record["rows"], options.draw)


COLUMNS = {"none": 12, "changed": 22, "crafted": 14, "after": 21}


def plan() -> list[tuple[str, str, set[str]]]:
    """Return for each batch its images, what the attacker does, and the columns of the table that it belongs to."""
    batches = [(images, attack) for images, count, attack in STREAM for _ in range(count)]
    result = []
    for number, (images, attack) in enumerate(batches):
        columns, before = {attack}, batches[number - 1] if number else (images, "none")
        if attack == "none" and before[0] != images:
            columns.add("changed")
        if attack == "none" and before[1] == "owned":
            columns.add("after")
        result.append((images, attack, columns))
    return result


def select(errors: list[float | None], column: str) -> list[float]:
    """Return the errors of the batches of one column."""
    pairs = zip(errors, plan()[: len(errors)], strict=True)
    return [error for error, (*_, columns) in pairs if column in columns and error is not None]


def mean(values: list[float]) -> float:
    """Return the mean."""
    return sum(values) / len(values)


def measure(row: tuple[str, str, dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    """Serve the stream and return the error of the benign images of each batch; None where there are none."""
    name, style, arguments = row
    adapter = medbn.adapt(models.get("resnet-small", weights="shipped"), **arguments)
    gradient = "exact" if style == "mean" else "smooth"
    attack = attacks.DIA(attacks.Indiscriminate(), steps=options.steps, step_size=2.5 / 255, gradient=gradient)
    streams = {images: endless(images) for images, *_ in STREAM}
    errors: list[float | None] = []
    for images_name, kind, _ in plan()[: options.batches]:
        images, labels = next(streams[images_name])
        benign = {"none": SIZE, "crafted": SIZE - MALICIOUS, "owned": 0}[kind]
        if kind == "crafted" and adapter.adapts:  # else no prediction depends on another image
            images = attack(adapter, images, labels, slice(benign, SIZE))
        elif kind == "owned":
            board = attacks.DIA(steps=0, start="checkerboard")
            both = torch.cat([images, images]), torch.cat([labels, labels])
            images = board(medbn.adapt(adapter.model, "source"), *both, slice(SIZE, None))[SIZE:]
        wrong = predict_logits(adapter, images).argmax(dim=1) != labels
        errors.append(100 * wrong[:benign].float().mean().item() if benign else None)
    return {"name": name, "style": style, "errors": errors}


def endless(name: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Return batches of digits without end, in the order of one shuffle after the other."""
    digits = data.load("digits") if name == "clear" else data.load("digits", corruption=name, severity=5)
    for seed in itertools.count():
        yield from digits.shuffle(seed).batches(SIZE, drop_last=True)


def shade(axis: Any, numbers: Numbers, theme: Theme) -> None:
    """Shade attacked batches, and draw a line where the images change."""
    before = ""
    for number, (images, attack, _) in enumerate(plan()[: len(numbers.rows[0]["errors"])], start=1):
        if attack != "none":
            alpha = 0.35 if attack == "owned" else 0.12
            axis.axvspan(number - 0.5, number + 0.5, color=theme.malicious, alpha=alpha, linewidth=0)
        if images != before:
            axis.axvline(number - 0.5, color=theme.ink, linewidth=0.7)
            axis.annotate(images, (number - 0.4, 1.02), xycoords=("data", "axes fraction"), fontsize=7)
        before = images


FIGURE = StreamFigure(
    name="changing-stream",
    title="a stream that changes, under attack",
    shade=shade,
    batches="batch (shaded: 20 % of its images are crafted; darker: all of them are checkerboards)",
    errors="error of benign images (%)",
)


if __name__ == "__main__":
    sys.exit(cli.run_program("changing_stream.py", main))
