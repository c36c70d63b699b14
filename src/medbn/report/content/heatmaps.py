"""The heat maps of a panel: harm by corruption."""

from __future__ import annotations

from ...data import corruptions
from ..document import Heatmap, Measure, Part
from .labels import corruption_label, estimator_label, method_label
from .measures import as_percent, keys_of, measure_worst
from .panels import Panel


def heatmap_parts(panel: Panel) -> list[Part]:
    """Return one heat map with the estimators of the only method as rows, or for each estimator one with the methods.

    There is none for sweeps and for results of one corruption.
    """
    used = panel.results.values(lambda cell: cell.corruption)
    if len(used) < 2 or panel.sweep:
        return []
    names = [name for name in corruptions.available() if name in used]
    columns = [corruption_label(name) for name in names]
    subject = panel.title or panel.harm
    methods = list(dict.fromkeys(method for method, _ in panel.groups))
    if len(methods) == 1 and len(panel.estimators) > 1:
        label = method_label(methods[0])
        values = [[_measure(panel, *group, name) for name in names] for group in panel.groups]
        rows = [estimator_label(estimator) for _, estimator in panel.groups]
        alt = f"{panel.harm} of {label} by normalisation and corruption, in per cent."
        return [Heatmap(f"{label}: {subject}", alt, rows, columns, values, low_is_worse=panel.high_is_better)]
    parts: list[Part] = []
    for estimator in panel.estimators:
        methods = [method for method, other in panel.groups if other == estimator]
        values = [[_measure(panel, method, estimator, name) for name in names] for method in methods]
        label = estimator_label(estimator)
        alt = f"{panel.harm} of {label} by method and corruption, in per cent."
        rows = [method_label(one) for one in methods]
        title = f"{label}: {subject}"
        parts.append(Heatmap(title, alt, rows, columns, values, low_is_worse=panel.high_is_better))
    return parts


def _measure(panel: Panel, method: str, estimator: str, corruption: str) -> Measure | None:
    """Return the harm of the worst attack on each batch of one corruption, or the error without an attack."""
    results = panel.group(method, estimator).select(lambda cell: cell.corruption == corruption)
    if not results.cells:
        return None
    if panel.attack is not None:
        return measure_worst(results.hardest(panel.columns))
    return as_percent(results.measure(), len(results.batches), cells=keys_of(results))
