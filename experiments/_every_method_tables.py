"""The tables of docs/results/every-method.md, from digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from _stored import (
    HEADER,
    NAMES,
    NOTHING,
    SAME,
    THREE,
    Rows,
    added_error,
    difference,
    error,
    percent,
    pick,
    rate,
    table,
)
from medbn import bench, methods
from medbn.bench import Results

STORE = "every-method-digits-cpu"
ROBUST = THREE[1:]
GRADIENTS = ("exact", "straight_through", "smooth")


def label(method: str) -> str:
    """Return what a page calls a method."""
    return methods.get(method).label


def methods_of(recipe: str) -> list[str]:
    """Return the methods of a recipe, in their order."""
    found = pick(recipe, STORE).values(lambda cell: cell.method)
    return [name for name in methods_in_order() if name in found]


def methods_in_order() -> list[str]:
    """Return the methods of the page: those of the paper, then the others."""
    paper = ["source", "tebn", "tent", "eta", "eata", "sar"]
    return [*paper, "cotta", "rotta", "deyo", "roid", "note", "lame", "alpha_bn"]


def estimators_of(method: str) -> tuple[str, ...]:
    """Return the estimators that were measured: one where a method estimates nothing."""
    return THREE if methods.get(method).uses_estimator() else THREE[:1]


def by_estimator(recipe: str, method: str, measure: Callable[[Results], str]) -> list[str]:
    """Return a measure for the three estimators; for a method that estimates nothing, once."""
    found = [measure(pick(recipe, STORE, method=method, estimator=one)) for one in estimators_of(method)]
    return [*found, *[NOTHING] * (len(THREE) - len(found))]


@table("every-method-no-attack")
def no_attack() -> Rows:
    """Return the error without attack from the source model on each corruption, and on one stream of all."""
    rows = [["", *(f"reset: {one}" for one in HEADER), *(f"continual: {one}" for one in HEADER), "continual − Source"]]
    for method in methods_of("every-method-no-attack"):
        cells = [by_estimator(recipe, method, error) for recipe in ("every-method-no-attack", "every-method-continual")]
        rows.append([label(method), *cells[0], *cells[1], versus_source("every-method-continual", method)])
    return rows


def versus_source(recipe: str, method: str) -> str:
    """Return how much higher the error with BatchNorm is than the source model's, on the same batches."""
    if method == "source":
        return NOTHING
    base, other = (pick(recipe, STORE, method=name, estimator="mean") for name in ("source", method))
    errors = {_batch_of(key): value for key, value in base.by_batch().items()}
    pairs = [(errors[_batch_of(key)], value) for key, value in other.by_batch().items()]
    return percent(bench.intervals.paired_difference(*zip(*pairs, strict=True)), signed=True)


def _batch_of(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what names a batch whatever the method: its stream and its number."""
    return (*key[:-3], key[-1])


@table("every-method-sorted")
def sorted_streams() -> Rows:
    """Return the error on streams sorted by label, beside that on the same images in random order."""
    rows = [["", *(f"sorted: {one}" for one in HEADER), "sorted − Source", "in random order: BatchNorm"]]
    for method in methods_of("every-method-sorted"):
        random = error(pick("every-method-no-attack", STORE, method=method, estimator="mean"))
        cells = by_estimator("every-method-sorted", method, error)
        rows.append([label(method), *cells, versus_source("every-method-sorted", method), random])
    return rows


def attacked(objective: str, measure: Callable[[Results], str], batches: str) -> Rows:
    """Return the attacks on every method: with exact gradients, and the worst of three."""
    columns = [f"{NAMES[one]}, {kind}" for one in ROBUST for kind in ("exact", "worst of three")]
    rows = [["", "without attack", "BatchNorm", *columns, batches]]
    for method in methods_of(f"every-method-{objective}"):
        base = pick(f"every-method-{objective}", STORE, method=method, estimator="mean")
        without = percent(base.error("wrong_without")) if objective == "indiscriminate" else _anyway(base)
        cells = [measure(base)]
        for estimator in ROBUST if methods.get(method).uses_estimator() else ():
            results = pick(f"every-method-{objective}", STORE, method=method, estimator=estimator)
            exact = results.select(lambda cell: cell.attack.gradient == "exact")
            several = len(results.values(lambda cell: cell.attack.gradient)) == len(GRADIENTS)
            cells += [measure(exact), measure(results.hardest()) if several else SAME]
        cells += [NOTHING] * (1 + 2 * len(ROBUST) - len(cells))
        rows.append([label(method), without, *cells, str(len(base.batches))])
    return rows


def _anyway(results: Results) -> str:
    """Return how many targets are predicted as the target class without an attack."""
    return f"{sum(bool(batch['already']) for batch in results.batches)} of {len(results.batches)}"


table("every-method-targeted")(lambda: attacked("targeted", rate, "targets"))
table("every-method-indiscriminate")(lambda: attacked("indiscriminate", added, "batches"))


def added(results: Results) -> str:
    """Return the error that attacks add to that of the same images without one."""
    return percent(added_error(results), signed=True)


@table("every-method-come")
def come() -> Rows:
    """Return what COME's entropy changes in the error without attack."""
    header = [f"{kind}: {NAMES[one]}" for kind in ("reset", "continual") for one in ("mean", "image_median")]
    rows = [["COME's entropy − the method's own", *header]]
    for method in methods_of("come-no-attack"):
        cells = []
        for kind in ("no-attack", "continual"):
            for estimator in ("mean", "image_median"):
                base = pick(f"every-method-{kind}", STORE, method=method, estimator=estimator)
                other = pick(f"come-{kind}", STORE, method=method, estimator=estimator)
                cells.append(difference(base, other))
        rows.append([label(method), *cells])
    return rows


@table("every-method-without-batchnorm")
def without_batchnorm() -> Rows:
    """Return a vision transformer without attack and under both, which go through one step of the method."""
    rows = [
        ["", "error without attack", "targets hit", "so without attack", "error under attack", "on the same images"]
    ]
    for method in methods_of("without-batchnorm-no-attack"):
        clean = pick("without-batchnorm-no-attack", STORE, method=method)
        targeted, all_images = (
            pick("without-batchnorm", STORE, objective, method=method) for objective in ("targeted", "indiscriminate")
        )
        without = percent(all_images.error("wrong_without"))
        rows.append([label(method), error(clean), rate(targeted), _anyway(targeted), error(all_images), without])
    return rows
