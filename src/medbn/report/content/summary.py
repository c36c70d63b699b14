"""The first section of a report on several experiments: one row for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ...bench import Results
from ..document import Section, Table, Value
from .labels import estimator_label, order_estimators
from .lead import of_estimator, shared_batches
from .measures import measure_harm, measure_worst
from .panels import Panel, split_into_panels

SHOWN = 4
"""How many estimators the summary compares; all are in the sections."""


def summary_sections(recipes: Sequence[Results]) -> list[Section]:
    """Return the section with the summary: for each panel of each experiment, what the worst attack does."""
    panels = [(results.recipe["name"], panel) for results in recipes for panel in split_into_panels(results)]
    counts = Counter(name for _, panel in panels for name in panel.estimators)
    used = order_estimators(sorted(counts, key=lambda name: (-counts[name], name))[:SHOWN])
    rows: list[list[Value]] = []
    for name, panel in panels:
        # One that not all attacks were run on would leave nothing to compare the others on.
        shared = shared_batches(panel, [estimator for estimator in used if shared_batches(panel, [estimator])])
        values = [_measure(panel, estimator, shared) for estimator in used]
        rows.append([name, _what(panel), *values, len(panel.results.cells)])
    columns = ["experiment", "what is counted", *map(estimator_label, used), "cells"]
    caption = (
        "In per cent: under the worst attack of each batch, or without one, over all methods of the experiment and the"
        " batches that these defences share."
    )
    return [
        Section(
            "Summary",
            [Table("Under the worst attack", columns, rows, caption, labels=1, groups=[name for name, _ in panels])],
        )
    ]


def _what(panel: Panel) -> str:
    """Return what the numbers of a panel are."""
    harm = panel.harm if panel.attack is not None else f"{panel.harm} without attack"
    title = panel.title if panel.attack is None or "," in panel.title else ""
    over = f", mean over the numbers of {panel.sweep}" if panel.sweep else ""
    return f"{harm}{over}{f' ({title})' if title else ''}"


def _measure(panel: Panel, estimator: str, shared: set[tuple[object, ...]]) -> Value:
    """Return the harm of the worst attack on an estimator, or its error without an attack."""
    results = of_estimator(panel.results, estimator).only(shared)
    if not results.cells:
        return None
    if panel.attack is None or panel.sweep:
        return measure_harm(results)
    worst = measure_worst(results.hardest(panel.columns))
    return worst if worst.count else None
