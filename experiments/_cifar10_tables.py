"""The tables of docs/results/cifar10-c.md."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence

from _stored import (
    HEADER,
    METHODS,
    NAMES,
    SEVEN,
    THREE,
    Rows,
    added_error,
    difference,
    error,
    first_batches,
    gradients_of,
    name_of,
    percent,
    pick,
    rate,
    table,
    worst_of,
)
from medbn import bench
from medbn.bench import Results, published


@table("no-attack")
def no_attack() -> Rows:
    """Return the error of every method on the first ten batches of each corruption, and of TeBN on all."""
    whole = [error(pick("no-attack", method="tebn", estimator=one)) for one in THREE]
    rows = [["", *HEADER], ["TeBN, all 150,000 images", *whole]]
    for method in ("source", *SEVEN[:3], "eata", *SEVEN[3:]):
        results = [first_batches(pick("no-attack", method=method, estimator=one), 10) for one in THREE]
        rows.append([METHODS[method], *(error(one) for one in results)])
    return rows


def instant(recipe: str, measure: Callable[[Results], str], digits: int) -> Rows:
    """Return a table of the seven methods with the differences to BatchNorm on the same batches."""
    rows = [["", *HEADER, *(f"{NAMES[one]} − BatchNorm" for one in THREE[1:])]]
    for method in SEVEN:
        base, *others = (pick(recipe, method=method, estimator=one) for one in THREE)
        differences = [difference(base, other, digits) for other in others]
        rows.append([METHODS[method], *(measure(one) for one in (base, *others)), *differences])
    return rows


@table("targeted-instant")
def targeted_instant() -> Rows:
    """Return the success of the targeted attack with exact gradients on 60 targets."""
    return instant("targeted-instant", rate, 0)


@table("indiscriminate-instant")
def indiscriminate_instant() -> Rows:
    """Return the error under the indiscriminate attack with exact gradients."""
    return instant("indiscriminate-instant", error, 1)


@table("grey")
def grey() -> Rows:
    """Return what forty grey images do without a step of an attack."""
    rows = [["", "error without", "error with 40 grey images", "targets hit"]]
    for estimator in THREE:
        results = pick("grey", "grey-cpu", estimator=estimator)
        without = percent(results.error("wrong_without"))
        hits = sum(batch["hit"] for batch in results.batches)
        rows.append([NAMES[estimator], without, error(results), f"{hits} of {len(results.batches)}"])
    return rows


@table("cumulative")
def cumulative() -> Rows:
    """Return both attacks where the poison stays."""
    rows = [["", *(f"targeted: {one}" for one in HEADER), *(f"indiscriminate: {one}" for one in HEADER)]]
    for method in ("tebn", "tent", "eata", *SEVEN[3:]):
        cells = [
            measure(pick("cumulative", objective=objective, method=method, estimator=one))
            for objective, measure in (("targeted", rate), ("indiscriminate", error))
            for one in THREE
        ]
        rows.append([METHODS[method], *cells])
    return rows


def worst_case(objective: str, measure: Callable[[Results], str], estimators: Sequence[str], **fields: object) -> Rows:
    """Return the attacks on TeBN with each gradient and the worst of them."""
    rows = [["", "exact", "straight-through", "smooth", "worst", "batches"]]
    for estimator in estimators:
        results = pick("worst-case", objective=objective, method="tebn", estimator=estimator, **fields)
        count = len(results.hardest().batches)
        rows.append([NAMES[estimator], *gradients_of(results, estimator, measure), str(count)])
    return rows


FIVE = (*THREE, "mad", "mad_scaled")
table("worst-case-targeted")(lambda: worst_case("targeted", rate, THREE))
table("worst-case-mad")(lambda: worst_case("targeted", rate, FIVE, seed=1))
table("worst-case-indiscriminate")(lambda: worst_case("indiscriminate", error, FIVE))


@table("worst-case-difference")
def worst_case_difference() -> Rows:
    """Return how the worst of three gradients differs from the attack on BatchNorm, on the same batches."""
    rows = [["", "targeted, points of success", "indiscriminate, points of error"]]
    for estimator in ("median", "image_median"):
        cells = []
        for objective, digits in (("targeted", 0), ("indiscriminate", 1)):
            base, other = (
                worst_of(pick("worst-case", objective=objective, method="tebn", estimator=one))
                for one in ("mean", estimator)
            )
            cells.append(difference(base, other, digits))
        rows.append([f"{NAMES[estimator]} − BatchNorm", *cells])
    return rows


def sweep(recipe: str, axis: str, values: Sequence[int], measure: Callable[[Results], str]) -> Rows:
    """Return a table of TeBN with sizes of a batch in its rows, beside what the paper prints."""
    paper = published.get(recipe)
    labels = {"malicious": "malicious of 200", "batch_size": "images in a batch"}
    rows = [[labels[axis], "BatchNorm", "paper", "MedBN", "paper", "`image_median`"]]
    for value in values:
        row = [str(value)]
        for estimator in THREE:
            row.append(measure(pick(recipe, estimator=estimator, **{axis: value})))
            if estimator != "image_median":
                row.append(f"{paper.lookup(dataset='cifar10-c', estimator=estimator, **{axis: value}):.1f}")
        rows.append(row)
    return rows


MALICIOUS, SIZES = (10, 20, 40, 60, 80), (16, 32, 64, 128, 200)
table("malicious-targeted")(lambda: sweep("malicious-targeted", "malicious", MALICIOUS, rate))
table("malicious-indiscriminate")(lambda: sweep("malicious-indiscriminate", "malicious", MALICIOUS, error))
table("batch-size-targeted")(lambda: sweep("batch-size-targeted", "batch_size", SIZES, rate))
table("batch-size-indiscriminate")(lambda: sweep("batch-size-indiscriminate", "batch_size", SIZES, error))


@table("malicious-gradients")
def malicious_gradients() -> Rows:
    """Return the targeted attack with 60 and 80 malicious images and each gradient."""
    rows = [["malicious of 200", "", "exact", "straight-through", "smooth", "worst"]]
    for count in (60, 80):
        for estimator in THREE[1:]:
            results = pick("malicious-gradients", estimator=estimator, malicious=count)
            rows.append([str(count), NAMES[estimator], *gradients_of(results, estimator, rate)])
    return rows


@table("epsilon")
def epsilon() -> Rows:
    """Return the targeted attack with a small and without a bound on the perturbation."""
    paper = published.get("epsilon")
    rows = [["ε", "BatchNorm", "paper", "MedBN", "paper", "`image_median`"]]
    for label, bound in (("8/255", 8 / 255), ("1", 1.0)):
        row = [label]
        for estimator in THREE:
            row.append(rate(pick("epsilon", estimator=estimator, epsilon=bound)))
            if estimator != "image_median":
                row.append(f"{paper.lookup(estimator=estimator, epsilon=bound):.1f}")
        rows.append(row)
    return rows


@table("priors")
def priors() -> Rows:
    """Return the error of estimators that are mixed with training statistics."""
    base = pick("no-attack", method="tebn", estimator="mean")
    rows = [["TeBN with", "error", "difference to BatchNorm"]]
    for estimator in ("mean@0.6", "median@0.6", *(f"image_median@{prior}" for prior in (0.5, 0.6, 0.7, 0.8))):
        results = pick("no-attack", method="tebn", estimator=estimator)
        rows.append([name_of(estimator), error(results), percent(results.minus(base), 2, signed=True)])
    return rows


@table("priors-worst-case")
def priors_worst_case() -> Rows:
    """Return the targeted attack on `image_median` without and with a prior."""
    rows = [["TeBN with", "exact", "straight-through", "smooth", "worst"]]
    for estimator in ("image_median", "image_median@0.6"):
        results = first_batches(pick("frontier", estimator=estimator), 1)
        rows.append([name_of(estimator), *gradients_of(results, estimator, rate)])
    return rows


@table("memory")
def memory() -> Rows:
    """Return moving averages in which a batch has little weight while it is served."""
    rows = [["sEMA with", "error", "exact", "targets", "predicted so anyway"]]
    for estimator in ("mean", "median", "image_median", "image_median@0.5"):
        recipe = "foresight" if "@" in estimator else "memory"
        attacked = pick(recipe, estimator=estimator, gradient="exact")
        already = bench.intervals.wilson(sum(b["already"] for b in attacked.batches), len(attacked.batches))
        whole = error(pick("memory-no-attack", estimator=estimator))
        digits = 1 if len(attacked.batches) > 100 else 0
        rows.append([name_of(estimator), whole, rate(attacked), str(len(attacked.batches)), percent(already, digits)])
    return rows


LASTING = ("mean", "median", "image_median", "image_median@0.5")


@table("past")
def past() -> Rows:
    """Return the error of ``past``, and how often the target class is predicted without any attack."""
    rows = [["`past` with", "error", "targets that are predicted so anyway", "targets"]]
    for estimator in LASTING:
        results = pick("past-no-attack", estimator=estimator)
        already = [batch["already"] for batch in results.batches]
        chance = percent(bench.intervals.wilson(sum(already), len(already)))
        rows.append([name_of(estimator), error(results), chance, str(len(already))])
    return rows


def poison(recipe: str, store: str) -> Rows:
    """Return the points of error that poison of earlier batches adds to ``past``, from the second batch on."""

    def describe_added(results: Results) -> str:
        return percent(added_error(first_batches(results, sys.maxsize, skip=1)), signed=True)

    rows = [["`past` with", "exact", "straight-through", "smooth", "worst", "batches"]]
    for estimator in LASTING:
        results = pick(recipe, store, estimator=estimator)
        later = first_batches(results.hardest(), sys.maxsize, skip=1)
        rows.append([name_of(estimator), *gradients_of(results, estimator, describe_added), str(len(later.batches))])
    return rows


table("poison")(lambda: poison("past-cumulative", "cifar10-c"))
table("poison-digits")(lambda: poison("poison", "poison-cpu"))
table("poison-one-pass")(lambda: poison("poison-one-pass", "poison-one-pass-cpu"))


@table("in-order")
def in_order() -> Rows:
    """Return the targeted attack on streams in the order of the file, which have two targets."""
    rows = [["", *HEADER]]
    return [*rows, ["TeBN", *(rate(pick("in-order", estimator=estimator)) for estimator in THREE)]]


def printed_number(name: str, method: str, estimator: str) -> float:
    """Return a number that the paper prints for CIFAR-10-C."""
    value = published.get(name).lookup(dataset="cifar10-c", method=method, estimator=estimator)
    return math.nan if value is None else value


def printed_harm(method: str, estimator: str) -> float:
    """Return the error that the indiscriminate attack adds in the paper."""
    return printed_number("indiscriminate-instant", method, estimator) - printed_number("no-attack", method, estimator)


def arrow(values: Sequence[str]) -> str:
    """Return two values as a change."""
    return " → ".join(values)


def beside_paper(method: str) -> list[tuple[str, str, str]]:
    """Return for one method what is compared, the paper's numbers and ours, of BatchNorm and of MedBN."""
    pair = THREE[:2]
    hits = [rate(pick("targeted-instant", method=method, estimator=one)) for one in pair]
    harm = [percent(added_error(pick("indiscriminate-instant", method=method, estimator=one))) for one in pair]
    base, median = (pick("no-attack", method=method, estimator=one) for one in pair)
    theirs = [printed_number("no-attack", method, one) for one in pair]
    return [
        (
            "targeted success",
            arrow([f"{printed_number('targeted-instant', method, one):.1f}" for one in pair]),
            arrow(hits),
        ),
        (
            "error that the indiscriminate attack adds",
            arrow([f"{printed_harm(method, k):.1f}" for k in pair]),
            arrow(harm),
        ),
        (
            "error that MedBN adds without attack",
            f"{theirs[1] - theirs[0]:.1f}".replace("-", "−"),
            difference(base, median),
        ),
    ]


@table("paper")
def paper() -> Rows:
    """Return what the paper prints beside what was measured: compare effects, since the weights are others."""
    header = [f"{what}, {who}" for what, *_ in beside_paper("tebn") for who in ("paper", "here")]
    rows = [["BatchNorm → MedBN", *header]]
    return [*rows, *([METHODS[k], *(text for _, *two in beside_paper(k) for text in two)] for k in SEVEN)]
