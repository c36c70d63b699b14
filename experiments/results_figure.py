"""How many targets does each defence lose, to the paper's attack and to the worst of three gradients? A figure.

    python experiments/results_figure.py [--out docs/images/results.png]

It is drawn from the committed stores in seconds (CIFAR-10-C, 60 targets; 750 for ``past``), and needs matplotlib.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import matplotlib as mpl

from _stored import first_batches, pick
from medbn import bench, cli
from medbn._styles import estimator_style
from medbn.bench import Interval

OUT = Path(__file__).parents[1] / "docs" / "images" / "results.png"
ROWS = (
    ("TeBN, BatchNorm", "mean"),
    ("TeBN, MedBN", "median"),
    ("TeBN, image_median", "image_median"),
    ("TeBN, image_median@0.6", "image_median@0.6"),
    ("past, image_median@0.5", "image_median@0.5"),
)


def measure(estimator: str) -> tuple[Interval, Interval]:
    """Return the success with exact gradients, and with the worst of three; for ``past``, of no attack twice."""
    if estimator == "image_median@0.5":
        already = [batch["already"] for batch in pick("past-no-attack", estimator=estimator).batches]
        return (bench.intervals.wilson(sum(already), len(already)),) * 2
    if "@" in estimator:
        results = first_batches(pick("frontier", estimator=estimator), 1)
    else:
        results = pick("worst-case", objective="targeted", method="tebn", estimator=estimator)
    exact = results.complete().select(lambda cell: cell.attack.gradient == "exact").success()
    worst = results.hardest().success()
    assert exact is not None
    assert worst is not None
    return exact, worst


def draw(out: Path) -> None:
    """Draw an interval for each defence and attack."""
    mpl.use("agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7.2, 3.4), dpi=150, layout="constrained")
    for row, (label, estimator) in enumerate(ROWS):
        style = estimator_style(estimator.partition("@")[0])
        for shift, interval, strong in zip((-0.14, 0.14), measure(estimator), (False, True), strict=True):
            value, low, high = (100 * number for number in interval)
            axis.plot([low, high], [row + shift] * 2, color=style.light, linewidth=2, alpha=1 if strong else 0.45)
            face = style.light if strong else "white"
            axis.plot(value, row + shift, style.mark, color=style.light, markerfacecolor=face, markersize=8)
            axis.annotate(f"{value:.0f}", (high, row + shift), (5, 0), textcoords="offset points", va="center", size=9)
        axis.text(-2, row, label, ha="right", va="center")
    axis.set(xlim=(0, 103), ylim=(len(ROWS) - 0.5, -0.6), yticks=[], xlabel="targets hit, % (95 % intervals)")
    for strong, label in ((False, "the paper's attack (exact gradients)"), (True, "the worst of three gradients")):
        axis.plot([], [], "o", color="#3c4654", markerfacecolor="#3c4654" if strong else "white", label=label)
    axis.legend(loc="lower right", frameon=False)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.grid(axis="x", color="#e4e4e4")
    axis.set_axisbelow(True)
    figure.savefig(out)
    pyplot.close(figure)


def main() -> None:
    parser = cli.Parser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=OUT, help="default: docs/images/results.png")
    options: argparse.Namespace = parser.parse_args()
    draw(options.out)
    print(options.out)


if __name__ == "__main__":
    sys.exit(cli.run_program("results_figure.py", main))
