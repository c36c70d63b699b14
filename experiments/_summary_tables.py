"""The tables of docs/results.md and of README.md."""

from __future__ import annotations

from _cifar10_tables import beside_paper, past
from _stored import (
    METHODS,
    NAMES,
    NOTHING,
    SEVEN,
    THREE,
    Rows,
    difference,
    error,
    first_batches,
    gradients_of,
    percent,
    pick,
    rate,
    table,
)
from medbn import bench


@table("summary-beats")
def summary_beats() -> Rows:
    """Return what the paper's attack does to TeBN, and to the other methods as the range of their values."""
    rows = [["MedBN − BatchNorm", "targeted, points of success", "indiscriminate, points of error"]]
    for method in SEVEN:
        cells = [
            difference(*(pick(recipe, method=method, estimator=one) for one in THREE[:2]), digits)
            for recipe, digits in (("targeted-instant", 0), ("indiscriminate-instant", 1))
        ]
        rows.append([METHODS[method], *cells])
    return rows


@table("summary-survives")
def summary_survives() -> Rows:
    """Return exact gradients beside the worst of three."""
    rows = [["TeBN with", "targeted, exact", "worst of three", "indiscriminate, exact", "worst of three"]]
    for estimator in THREE:
        cells = []
        for objective, measure in (("targeted", rate), ("indiscriminate", error)):
            exact, *_, worst = gradients_of(
                pick("worst-case", objective=objective, method="tebn", estimator=estimator), estimator, measure
            )
            cells += [exact, worst]
        rows.append([NAMES[estimator], *cells])
    return rows


@table("summary-what-does")
def summary_what_does() -> Rows:
    """Return the worst targeted attack within a batch on the strongest defences, and poison for later batches."""
    rows = [["", "targets hit within a batch, worst of three", "targets"]]
    mixed = first_batches(pick("frontier", estimator="image_median@0.6"), 1).hardest()
    alone = pick("worst-case", objective="targeted", method="tebn", estimator="image_median").hardest()
    for label, results in (("TeBN, `image_median`", alone), ("TeBN, `image_median@0.6`", mixed)):
        rows.append([label, rate(results), str(len(results.batches))])
    anyway = next(row for row in past() if "prior" in row[0])
    return [*rows, ["`past`, `image_median@0.5`", f"{anyway[2]}, all of them without any attack too", anyway[3]]]


@table("summary-cost")
def summary_cost() -> Rows:
    """Return the errors without attack on all images, and the differences to BatchNorm on the same batches."""
    rows = [["", "error without attack", "difference to the first row"]]
    base = pick("no-attack", method="tebn", estimator="mean")
    errors = {(*key[:-3], key[-1]): value for key, value in base.by_batch().items()}  # without method and attack
    chosen = [(f"TeBN, {NAMES[one]}", pick("no-attack", method="tebn", estimator=one)) for one in THREE]
    chosen.append(("`past`, `image_median@0.5`", pick("past-no-attack", estimator="image_median@0.5")))
    for label, results in chosen:
        pairs = [(errors[(*key[:-3], key[-1])], value) for key, value in results.by_batch().items()]
        change = percent(bench.intervals.paired_difference(*zip(*pairs, strict=True)), signed=True)
        rows.append([label, error(results), NOTHING if results.cells == base.cells else change])
    return rows


@table("summary-paper")
def summary_paper() -> Rows:
    """Return the comparison with the paper for TeBN."""
    return [["TeBN, BatchNorm → MedBN", "paper", "here"], *(list(row) for row in beside_paper("tebn"))]


@table("readme")
def readme() -> Rows:
    """Return the error without attack, and the targeted attack on the paper's defence, ours and none."""
    rows = [["", "error without attack", "targets hit, the paper's attack", "targets hit, worst of three gradients"]]
    for estimator, label in (("mean", "TeBN with BatchNorm"), ("median", "TeBN with MedBN, the paper's")):
        exact, *_, worst = gradients_of(
            pick("worst-case", objective="targeted", method="tebn", estimator=estimator), estimator, rate
        )
        rows.append([label, error(pick("no-attack", method="tebn", estimator=estimator)), exact, worst])
    ours = next(row for row in past() if "prior" in row[0])
    return [*rows, ["`medbn.adapt(model)`", ours[1], ours[2], ours[2]]]
