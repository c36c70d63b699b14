"""The committed stores: what to read of them, and how numbers are written on the pages."""

from __future__ import annotations

import lzma
import math
import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

from medbn import bench
from medbn.bench import Cell, Interval, Results

REPOSITORY = Path(__file__).parents[1]
NAMES = {
    "mean": "BatchNorm",
    "median": "MedBN",
    "mad": "MAD",
    "mad_scaled": "scaled MAD",
    "image_median": "`image_median`",
}
METHODS = {
    "source": "Source",
    "tebn": "TeBN",
    "tent": "TENT",
    "eta": "ETA",
    "eata": "EATA",
    "sar": "SAR",
    "sotta": "SoTTA",
    "sema": "sEMA",
    "mdia": "mDIA",
}
SEVEN = ("tebn", "tent", "eta", "sar", "sotta", "sema", "mdia")
THREE = ("mean", "median", "image_median")
GRADIENTS = ("exact", "straight_through", "smooth")
HEADER = [NAMES[estimator] for estimator in THREE]
SAME, NOTHING = "the same", "–"

CHANGED_SINCE_0_1 = ("sar", "sotta")
"""Methods whose defaults have changed: what version 0.1.0 measured of them is left out."""

Rows = list[list[str]]
TABLES: dict[str, Callable[[], Rows]] = {}


def table(name: str) -> Callable[[Callable[[], Rows]], Callable[[], Rows]]:
    """Return a decorator that adds a table; its function returns the header and the rows."""

    def add(function: Callable[[], Rows]) -> Callable[[], Rows]:
        TABLES[name] = function
        return function

    return add


@cache
def read_store(store: str = "cifar10-c") -> dict[str, Results]:
    """Return the results of a committed store by the name of the recipe."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        path.write_bytes(lzma.decompress((REPOSITORY / "results" / f"{store}.db.xz").read_bytes()))
        with bench.Store(path, create=False) as opened:
            return {results.recipe["name"]: results for results in bench.results.read(opened)}


def pick(recipe: str, store: str = "cifar10-c", objective: str | None = None, **fields: object) -> Results:
    """Return the cells of a recipe whose fields, those of the setting or those of the attack have these values.

    Results of earlier defaults of a method are left out.
    """

    def fits(cell: Cell) -> bool:
        if objective is not None and (cell.attack is None or cell.attack.objective != objective):
            return False
        parts = (cell, cell.setting, cell.attack)
        return all(any(getattr(part, name, None) == value for part in parts) for name, value in fields.items())

    return select_current(read_store(store)[recipe]).select(fits)


def select_current(results: Results) -> Results:
    """Return the results without those of earlier defaults of a method."""
    current = [
        one for one in results.cells if one.cell.method not in CHANGED_SINCE_0_1 or one.facts["medbn"] != "0.1.0"
    ]
    return replace(results, cells=current)


def worst_of(results: Results) -> Results:
    """Return the worst of the gradients for each batch, compared with other estimators as the exact one."""
    attacks = sorted(results.values(lambda cell: cell.attack), key=lambda attack: GRADIENTS.index(attack.gradient))
    return results.hardest(attacks)


def first_batches(results: Results, count: int, skip: int = 0) -> Results:
    """Return the batches of every stream from ``skip`` to ``count``."""
    return results.only({one for one in results.batch_ids() if skip <= one[-1] < count})


def percent(interval: Interval | None, digits: int = 1, signed: bool = False) -> str:
    """Return an interval in per cent, as ``12.3 (11.0–14.0)``; signed with "to" between its limits."""
    if interval is None:
        return NOTHING
    texts = [f"{100 * value + 0.0:.{digits}f}".replace("-", "−") for value in interval if not math.isnan(value)]
    texts = [re.sub(r"^−(0(\.0)?)$", r"\1", text) for text in texts]
    if len(texts) == 1:
        return texts[0]
    between = " to " if signed else "–"
    return f"{texts[0]} ({texts[1]}{between}{texts[2]})"


def rate(results: Results) -> str:
    """Return a success rate; with a decimal from a hundred targets on."""
    return percent(results.success(), 1 if len(results.batches) > 100 else 0)


def difference(first: Results, second: Results, digits: int = 1, which: str = "wrong") -> str:
    """Return how much higher the measure is in the second, on the same batches."""
    return percent(second.minus(first, which), digits, signed=True)


def gradients_of(results: Results, estimator: str, measure: Callable[[Results], str]) -> list[str]:
    """Return the measure under each gradient and under the worst of the three, on the batches that have all."""
    if estimator.partition("@")[0] == "mean":
        text = measure(results)
        return [text, SAME, SAME, text]
    complete = results.complete()
    each = [measure(complete.select(lambda cell, g=gradient: cell.attack.gradient == g)) for gradient in GRADIENTS]
    return [*each, measure(results.hardest())]


def added_error(results: Results) -> Interval:
    """Return the error that attacks add to that of the same images without one."""
    wrong, without = results.by_batch("wrong"), results.by_batch("wrong_without")
    # Without an attack a batch is the same for all attacks: its key lacks the attack.
    pairs = [(without[(*key[:-2], None, key[-1])], value) for key, value in wrong.items()]
    return bench.intervals.paired_difference(*zip(*pairs, strict=True))


def error(results: Results) -> str:
    """Return the error of the benign images under attack, or of all images without one."""
    return percent(results.error())


def name_of(estimator: str) -> str:
    """Return what pages call an estimator."""
    base, _, prior = estimator.partition("@")
    return NAMES[base] + (f", prior {prior}" if prior else "")
